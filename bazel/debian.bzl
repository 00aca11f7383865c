"""What Debian's `bazel-bootstrap` (4.2.3) needs to work without a network.

Only a top-level WORKSPACE calls this, never `dmakit_dependencies()`: a project that fetches the real
rules would otherwise inherit stubs.
"""

_RULES_CC = """\
\"\"\"The names of rules_cc, on the rules built into this version of Bazel.\"\"\"

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_profile = native.fdo_profile
objc_library = native.objc_library
"""

# `bazel test` resolves this label even when no coverage is collected.
_COVERAGE_STUB = """\
filegroup(
    name = "coverage_report_generator",
    visibility = ["//visibility:public"],
)
"""

_JAVA = "/usr/share/bazel/rules/java"

def _rules_cc_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"rules_cc\")\n")
    ctx.file("BUILD", "")
    ctx.file("cc/BUILD", "")
    ctx.file("cc/defs.bzl", _RULES_CC)

_rules_cc = repository_rule(implementation = _rules_cc_impl)

def _coverage_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"remote_coverage_tools\")\n")
    ctx.file("BUILD", _COVERAGE_STUB)

_coverage_stub = repository_rule(implementation = _coverage_impl)

def dmakit_debian_shims():
    """Defines rules_cc, rules_java and remote_coverage_tools, unless they are defined already."""
    existing = native.existing_rules()
    if "rules_cc" not in existing:
        _rules_cc(name = "rules_cc")
    if "rules_java" not in existing:
        # From the package bazel-rules-java; toolchain resolution looks it up for every build.
        native.local_repository(name = "rules_java", path = _JAVA)
    if "remote_coverage_tools" not in existing:
        _coverage_stub(name = "remote_coverage_tools")
