"""The dependencies of dmakit, for WORKSPACE users. MODULE.bazel is the same list for Bazel modules."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:guest.bzl", "guest_kernel")
load("//bazel:system.bzl", "system_abseil", "system_library")

# Libraries that are always the machine's: they belong to its kernel or its hardware. All are optional;
# `select` on "@NAME//:installed" to build something else without them.
MACHINE_LIBRARIES = {
    "dpdk": dict(
        header = "rte_eal.h",
        optional = True,
        package = "libdpdk-dev",
        pkg_config = "libdpdk",
        targets = ["dpdk"],
    ),
    "libbpf": dict(
        header = "bpf/bpf.h",
        optional = True,
        package = "libbpf-dev",
        pkg_config = "libbpf",
        targets = ["libbpf"],
    ),
    "libxdp": dict(
        header = "xdp/xsk.h",
        optional = True,
        package = "libxdp-dev",
        pkg_config = "libxdp",
        targets = ["libxdp"],
    ),
    "systemtap_sdt": dict(
        header = "sys/sdt.h",
        optional = True,
        package = "systemtap-sdt-dev",
        targets = ["systemtap_sdt"],
    ),
    "valgrind": dict(
        header = "valgrind/callgrind.h",
        optional = True,
        package = "valgrind",
        targets = ["valgrind"],
    ),
}

# Libraries that a project may well build from source. Repository and target names are upstream's.
_LIBRARIES = {
    # The library itself.
    "jemalloc": dict(
        header = "jemalloc/jemalloc.h",
        package = "libjemalloc-dev",
        pkg_config = "jemalloc",
        targets = ["jemalloc"],
    ),
    # Leaf targets: capture files, NUMA placement, the command line.
    "cli11": dict(
        header = "CLI/CLI.hpp",
        package = "libcli11-dev",
        targets = ["cli11"],
    ),
    "libpcap": dict(
        header = "pcap/pcap.h",
        optional = True,
        package = "libpcap-dev",
        pkg_config = "libpcap",
        targets = ["libpcap"],
    ),
    "nlohmann_json": dict(
        header = "nlohmann/json.hpp",
        package = "nlohmann-json3-dev",
        targets = ["json"],
    ),
    "numactl": dict(
        header = "numa.h",
        optional = True,
        package = "libnuma-dev",
        pkg_config = "numa",
        targets = ["numa"],
    ),
    # Tests and benchmarks.
    "catch2": dict(
        header = "catch2/catch.hpp",
        package = "catch2",
        targets = ["catch2"],
    ),
    "google_benchmark": dict(
        header = "benchmark/benchmark.h",
        package = "libbenchmark-dev",
        pkg_config = "benchmark",
        targets = ["benchmark"],
    ),
}

def dmakit_dependencies():
    """Declares what dmakit needs; a repository that exists already is left alone.

    What is declared here are the libraries installed on this machine, under the labels the projects
    use themselves. To build one from source instead, define a repository of the same name (for example
    an `http_archive` called `com_google_absl`) before this call. Nothing is looked for before a target
    needs it.
    """
    maybe(system_abseil, name = "com_google_absl")
    for name in _LIBRARIES:
        maybe(system_library, name = name, **_LIBRARIES[name])
    for name in MACHINE_LIBRARIES:
        maybe(system_library, name = name, **MACHINE_LIBRARIES[name])

def dmakit_test_dependencies():
    """Declares what only the tests of this tree need, for its own WORKSPACE."""
    maybe(guest_kernel, name = "guest_kernel")
