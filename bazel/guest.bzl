"""The kernel that the tests in tests/qemu boot: a repository with vmlinuz and modules.

Where QEMU, busybox, cpio or the kernel's package is not to be had, the repository says so, and what
depends on it is skipped.
"""

_TOOLS = ["qemu-system-x86_64", "busybox", "cpio"]

# In the order in which a guest loads them.
_MODULES = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "netfs",
    "fscache",
    "9pnet",
    "9pnet_virtio",
    "9p",
    "irqbypass",
    "vfio_virqfd",
    "vfio",
    "vfio_iommu_type1",
    "vfio-pci-core",
    "vfio-pci",
    "tun",
    "e1000e",
]

_THERE = """\
package(default_visibility = ["//visibility:public"])

filegroup(
    name = "guest",
    srcs = ["vmlinuz"] + glob(["modules/*.ko"]),
)
"""

_MISSING = """\
package(default_visibility = ["//visibility:public"])

# Nothing is ever built for this value, so what needs the guest is skipped, not failed.
constraint_setting(name = "kernel")

constraint_value(
    name = "not_there",
    constraint_setting = ":kernel",
)

filegroup(
    name = "guest",
    target_compatible_with = [":not_there"],
)
"""

def _why_not(ctx):
    """Fetches the kernel; returns why there is none, or an empty string."""
    missing = [tool for tool in _TOOLS if not ctx.which(tool)]
    if missing:
        return "not on the PATH: " + ", ".join(missing)
    result = ctx.execute([ctx.path(Label("//bazel:fetch_kernel.sh")), "."] + _MODULES, timeout = 600)
    return "" if result.return_code == 0 else result.stderr.strip()

def _guest_kernel_impl(ctx):
    why = _why_not(ctx)
    ctx.file("WORKSPACE", "")
    if why:
        # buildifier: disable=print
        print("no guest for tests/qemu, which are skipped: " + why)
    ctx.file("BUILD", _MISSING if why else _THERE)

guest_kernel = repository_rule(
    implementation = _guest_kernel_impl,
    doc = "A Linux kernel for virtual machines, with the modules that the tests need.",
    environ = ["DMAKIT_PACKAGES_STAMP", "HOME", "PATH", "XDG_CACHE_HOME"],
)
