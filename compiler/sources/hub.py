"""The door for a hub id: its files into huggingface_hub's cache, then the folder door."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.safetensors_checkpoint import checkpoint_files

# Everything but weights; README.md for the licence.
_SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "README.md"]


def fetch(hub_id: str) -> Path:
    """The local snapshot folder of a hub model. Uses the cache alone where there is no network.

    Raises SourceError when the model is neither cached nor reachable, does not exist, or is gated.
    """
    folder = _snapshot(hub_id, _SMALL_FILES)
    names = [path.name for path in checkpoint_files_or_default(folder)]
    return _snapshot(hub_id, _SMALL_FILES + names)


def checkpoint_files_or_default(folder: Path) -> tuple[Path, ...]:
    """The shards that the index names, or the single file, which is not there before it was asked for."""
    if (folder / "model.safetensors.index.json").is_file():
        return checkpoint_files(folder)
    return (folder / "model.safetensors",)


def _snapshot(hub_id: str, patterns: list[str]) -> Path:
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except LocalEntryNotFoundError:
        raise SourceError(
            f"{hub_id}: no such file here, not in the hub's cache, and no network to fetch it from the hub"
        ) from None
    except GatedRepoError:
        raise SourceError(f"{hub_id}: gated on the hub: accept its terms there and log in (hf auth login)") from None
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise SourceError(f"{hub_id}: no such file here and no such model on the hub") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise SourceError(f"{hub_id}: the hub could not be read: {' '.join(str(error).split())[:300]}") from error
