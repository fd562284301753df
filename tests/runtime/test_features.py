"""Feature names of kernel and compiler compare equal; only what every core has counts."""

from llmc.runtime.artifact.features import Machine, feature_key


def test_spellings():
    for kernel, clang in (
        ("avx512_vnni", "avx512vnni"),
        ("avx512_bf16", "avx512bf16"),
        ("amx_tile", "amx-tile"),
        ("sse4_1", "sse4.1"),
        ("pni", "sse3"),
        ("abm", "lzcnt"),
        ("avx_vnni", "avxvnni"),
    ):
        assert feature_key(kernel) == feature_key(clang)
    assert feature_key("avx512_vnni") != feature_key("avx_vnni")


def test_features_of_every_core(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2 avx512_vnni\n\nprocessor : 1\nflags\t\t: fpu avx2\n")
    machine = Machine.this(cpuinfo)
    assert machine.features == {"fpu", "avx2"}
    assert machine.missing(["avx2", "avx512vnni"]) == ["avx512vnni"]


def test_no_cpuinfo_means_no_features(tmp_path):
    assert Machine.this(tmp_path / "absent").features == frozenset()


def test_this_machine_has_some():
    assert Machine.this().features
