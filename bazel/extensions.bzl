"""The machine's own libraries, for Bazel modules. See MODULE.bazel."""

load("//bazel:deps.bzl", "MACHINE_LIBRARIES")
load("//bazel:system.bzl", "system_library")

def _machine_libraries_impl(_ctx):
    for name in MACHINE_LIBRARIES:
        system_library(name = name, **MACHINE_LIBRARIES[name])

machine_libraries = module_extension(implementation = _machine_libraries_impl)
