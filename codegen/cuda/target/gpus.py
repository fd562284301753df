"""GPUs as data: what each offers at most, with where every figure is from. Nothing here was measured by us.

Peaks are NVIDIA's for dense operands (their data sheets print some figures "with sparsity": those are halved here), a
multiply-accumulate being two operations, at boost clock. Memory is what the data sheet calls it, in GiB: the cards
report between 0 and 6 % less (ECC and reserved pages), which the memory a plan may use leaves room for.

Sources, by name:
    [A100]  NVIDIA A100 Tensor Core GPU data sheet (A100 80GB SXM); [GA100] NVIDIA A100 architecture white paper
    [H100]  NVIDIA H100 Tensor Core GPU data sheet (H100 SXM); [GH100] NVIDIA H100 architecture white paper
    [H200]  NVIDIA H200 Tensor Core GPU data sheet (H200 SXM)
    [L40S]  NVIDIA L40S data sheet; [AD102] NVIDIA Ada GPU architecture white paper, appendices on GeForce RTX 4090 and
            on L40, which has the same AD102 configuration as L40S
    [B200]  NVIDIA HGX B200 and DGX B200 data sheets, per GPU (an eighth); [TUNE100] NVIDIA Blackwell tuning guide
    [CC]    CUDA C++ Programming Guide, technical specifications per compute capability (capabilities.py)
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from llmc.codegen.cuda.target.capabilities import TARGETS, CudaTarget
from llmc.codegen.roofline import Peaks

MIB, GIB = 1 << 20, 1 << 30
TERA = 10**12


@dataclass(frozen=True, kw_only=True)
class Gpu(CudaTarget):
    """A GPU that an engine is built for: its architecture's facts, which kernels ask, and its own, which decide speed.

    Sizes in bytes, `bandwidth` of its memory in bytes per second. `mma_sync`: the fraction of the tensor cores' peak
    that mma.sync can reach; wgmma reaches all of it where there is wgmma. None: no figure is known.
    """

    name: str
    product: str
    sms: int
    memory_bytes: int
    bandwidth: float
    l2_bytes: int
    peaks: Peaks
    mma_sync: float | None

    @property
    def device(self) -> str:
        """What a driver says of it, in the words of the emulator (`python -m llmc.emulator --device`)."""
        major, minor = self.capability
        same = ("sms", "memory_bytes", "l2_bytes", "smem_optin", "smem_sm", "regs_sm", "threads_sm")
        fields = {"name": f"NVIDIA {self.product}", "major": major, "minor": minor}
        return ";".join(f"{k}={v}" for k, v in (fields | {name: getattr(self, name) for name in same}).items())


def _gpu(
    name: str,
    product: str,
    arch: str,
    *,
    sms: int,
    memory_gib: int,
    bandwidth_gb: float,
    l2_mib: float,
    peaks: Peaks,
    mma_sync: float | None,
) -> Gpu:
    base = TARGETS[arch]
    return Gpu(
        **{f.name: getattr(base, f.name) for f in fields(base)},
        name=name,
        product=product,
        sms=sms,
        memory_bytes=memory_gib * GIB,
        bandwidth=bandwidth_gb * 1e9,
        l2_bytes=int(l2_mib * MIB),
        peaks=peaks,
        mma_sync=mma_sync,
    )


# Luo et al. 2024 (arXiv 2402.13499) measured mma.sync on Hopper at 62.9 % of the peak on average.
_HOPPER = Peaks(f32=67 * TERA, f16=989.4 * TERA, bf16=989.4 * TERA, e4m3=1978.9 * TERA, s8=1978.9 * TERA)  # [GH100]
_HOPPER_MMA_SYNC = 0.629

GPUS = {
    g.name: g
    for g in (
        _gpu(
            "a100",
            "A100 80GB SXM",
            "sm_80",
            sms=108,  # [GA100]
            memory_gib=80,  # [A100]
            bandwidth_gb=2039,  # [A100]
            l2_mib=40,  # [GA100]
            peaks=Peaks(f32=19.5 * TERA, f16=312 * TERA, bf16=312 * TERA, s8=624 * TERA),  # [A100]
            mma_sync=1.0,
        ),
        _gpu(
            "l40s",
            "L40S",
            "sm_89",
            sms=142,  # [AD102]
            memory_gib=48,  # [L40S]
            bandwidth_gb=864,  # [L40S]
            l2_mib=96,  # [AD102]
            peaks=Peaks(  # [L40S]; s8 is not in every edition of it: twice f16, as in [AD102]'s L40
                f32=91.6 * TERA, f16=362.05 * TERA, bf16=362.05 * TERA, e4m3=733 * TERA, s8=733 * TERA
            ),
            mma_sync=1.0,
        ),
        _gpu(
            "rtx4090",
            "GeForce RTX 4090",
            "sm_89",
            sms=128,  # [AD102]
            memory_gib=24,  # [AD102]
            bandwidth_gb=1008,  # [AD102]
            l2_mib=72,  # [AD102]
            peaks=Peaks(  # [AD102]; f16 and e4m3 with float32 sums run at half the rate of those with float16 sums
                f32=82.6 * TERA, f16=165.2 * TERA, bf16=165.2 * TERA, e4m3=330.3 * TERA, s8=660.6 * TERA
            ),
            mma_sync=1.0,
        ),
        _gpu(
            "h100",
            "H100 80GB SXM",
            "sm_90a",
            sms=132,  # [GH100]
            memory_gib=80,  # [H100]
            bandwidth_gb=3350,  # [H100]
            l2_mib=50,  # [GH100]
            peaks=_HOPPER,
            mma_sync=_HOPPER_MMA_SYNC,
        ),
        _gpu(
            "h200",
            "H200 141GB SXM",
            "sm_90a",
            sms=132,  # the same GH100 configuration as H100 SXM
            memory_gib=141,  # [H200]
            bandwidth_gb=4800,  # [H200]
            l2_mib=50,  # as H100 SXM
            peaks=_HOPPER,
            mma_sync=_HOPPER_MMA_SYNC,
        ),
        _gpu(
            "b200",
            "B200 180GB SXM",
            "sm_100a",
            sms=148,  # the driver's answer (github.com/pytorch/ao/pull/4002); no data sheet says
            memory_gib=180,  # [B200]
            # [B200] prints 62 to 64 TB/s for eight; the driver's clock and bus width give 7.67 (pytorch/ao/pull/4002)
            bandwidth_gb=7700,
            l2_mib=126,  # [TUNE100]
            peaks=Peaks(  # [B200]
                f32=75 * TERA, f16=2250 * TERA, bf16=2250 * TERA, e4m3=4500 * TERA, s8=4500 * TERA
            ),
            mma_sync=None,  # tcgen05 reaches the peak; how far the older mma.sync gets is published nowhere we know
        ),
    )
}


def gpu_for(arch: str) -> Gpu | None:
    """The first of an architecture."""
    return next((gpu for gpu in GPUS.values() if gpu.arch == arch), None)
