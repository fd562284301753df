"""Ray Serve's choice of a replica, by prefix: its public, alpha API for routers of one's own (Ray 2.60)."""

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from deploy.ray_serve.prefix import Keys, PrefixTable, choose


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # ray has no types where it is not installed
    """Requests name their prefix in the argument `prefix`. What was sent where is this router's own knowledge."""

    def initialize_state(self, slack: int = 8) -> None:
        self._slack = slack
        self._table = PrefixTable()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks, the best first. Of several in one rank Ray takes the idlest, and the next rank if that is full."""
        if not candidate_replicas:
            return []
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {name: self._load(replica) for name, replica in replicas.items()}
        first, others = choose(self._table, _prefix(pending_request), loads, self._slack)
        if first is not None:
            return [[replicas[first]], [replicas[name] for name in others]] if others else [[replicas[first]]]
        return [random.sample(list(replicas.values()), min(2, len(replicas)))]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self._table.sent(_prefix(pending_request), replica_id.unique_id)

    def _load(self, replica: RunningReplica) -> int:
        return self.replica_queue_len_cache.get(replica.replica_id) or 0


def _prefix(request: PendingRequest | None) -> Keys:
    return () if request is None else request.kwargs.get("prefix", ())
