"""Rules for the binaries and tests of this tree."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_test")

_MALLOC = Label("//bazel:malloc")
_CATCH_MAIN = Label("//tests:catch_main")

def dmakit_cc_binary(name, **kwargs):
    """A cc_binary on jemalloc; under a sanitizer, on the sanitizer's allocator."""
    cc_binary(
        name = name,
        malloc = kwargs.pop("malloc", _MALLOC),
        **kwargs
    )

def dmakit_cc_test(name, srcs, deps = [], size = "small", **kwargs):
    """A Catch2 test. Its sources include "tests/catch.h" and have no main()."""
    cc_test(
        name = name,
        size = size,
        srcs = srcs,
        malloc = kwargs.pop("malloc", _MALLOC),
        deps = deps + [_CATCH_MAIN],
        **kwargs
    )
