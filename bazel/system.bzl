"""Repository rules that present installed libraries as Bazel repositories.

Libraries are found with pkg-config (or by header), never unpacked or built. They are linked
dynamically: with a static allocator in the executable, AddressSanitizer would lose its own.

Bazel does not watch files outside the workspace. The rules therefore depend on the environment
variable DMAKIT_PACKAGES_STAMP, in which `bazelw` puts the versions of the packages it looks after:
a package that is installed, upgraded or removed makes the rules run again.
"""

_ENVIRON = [
    "DMAKIT_PACKAGES_STAMP",
    "PATH",
    "PKG_CONFIG_PATH",
]

# --- Constants a `select` can test -----------------------------------------------------------------

def _constant_impl(_ctx):
    return []

constant = rule(
    implementation = _constant_impl,
    build_setting = config.bool(),
    doc = "A truth found out when the repository was made, for a config_setting to test.",
)

_INSTALLED = """\
constant(
    name = "is_installed",
    build_setting_default = {installed},
)

# For `select`: true when the library was found on this machine.
config_setting(
    name = "installed",
    flag_values = {{":is_installed": "True"}},
)
"""

_MISSING = """\
# Nothing is ever built for this value, so what depends on the library is skipped, not failed.
constraint_setting(name = "library")

constraint_value(
    name = "not_installed",
    constraint_setting = ":library",
)
"""

# --- pkg-config -------------------------------------------------------------------------------------

def _pkg_config(ctx, args):
    """Returns the output of pkg-config, or None if it failed or is not installed."""
    tool = ctx.which("pkg-config")
    if not tool:
        return None
    result = ctx.execute([tool] + args)
    return result.stdout.strip() if result.return_code == 0 else None

def _compiler_dirs(ctx):
    """The directories every compiler here searches, those of Debian's multiarch layout included."""
    return ["/usr/include", "/usr/local/include"] + [
        str(entry)
        for entry in ctx.path("/usr/include").readdir()
        if entry.basename.endswith("-linux-gnu")
    ]

def _any_has(ctx, dirs, header):
    for d in dirs:
        if ctx.path(d + "/" + header).exists:
            return True
    return False

def _find(ctx):
    """Looks for the library of a `system_library`; returns how to use it, or None."""
    cflags, libs = "", ""
    if ctx.attr.pkg_config:
        cflags = _pkg_config(ctx, ["--cflags", ctx.attr.pkg_config])
        libs = _pkg_config(ctx, ["--libs", ctx.attr.pkg_config])
        if cflags == None or libs == None:
            return None
    compiler_dirs = _compiler_dirs(ctx)
    own_dirs = [f[2:] for f in cflags.split(" ") if f.startswith("-I")]
    own_dirs = [d for d in own_dirs if d not in compiler_dirs]
    if _any_has(ctx, own_dirs, ctx.attr.header):
        include_dirs = own_dirs
    elif _any_has(ctx, compiler_dirs, ctx.attr.header):
        include_dirs = []
    else:
        return None
    return struct(
        defines = [f[2:] for f in cflags.split(" ") if f.startswith("-D")],
        include_dirs = include_dirs,
        linkopts = [f for f in libs.split(" ") if f],
    )

# --- One library ------------------------------------------------------------------------------------

def _absolute(label):
    """The label as seen from another repository, also when ours is the main one."""
    text = str(label)
    return "@dmakit" + text if text.startswith("//") else text

def _system_library_impl(ctx):
    library = _find(ctx)
    if not library and not ctx.attr.optional:
        fail(("%s is not installed: no %s found. Run ./bazelw, which installs what is missing on " +
              "Debian, or install it by hand (package %s).") %
             (ctx.name, ctx.attr.header, ctx.attr.package))
    lines = [
        "load(\"@rules_cc//cc:defs.bzl\", \"cc_library\")",
        "load(\"%s\", \"constant\")" % _absolute(ctx.attr._self),
        "package(default_visibility = [\"//visibility:public\"])",
        _INSTALLED.format(installed = library != None),
    ]
    if library:
        # Directories the compiler does not search itself are linked into the repository.
        includes = ["include_%d" % i for i in range(len(library.include_dirs))]
        for link, target in zip(includes, library.include_dirs):
            ctx.symlink(target, link)
        attributes = [
            "    defines = %r," % library.defines,
            "    hdrs = glob(%r)," % [link + "/**" for link in includes],
            "    includes = %r," % includes,
            "    linkopts = %r," % library.linkopts,
        ]
    else:
        lines.append(_MISSING)
        attributes = ["    target_compatible_with = [\":not_installed\"],"]
    for target in ctx.attr.targets:
        lines += ["cc_library(", "    name = \"%s\"," % target] + attributes + [")"]
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", "\n".join(lines) + "\n")

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "header": attr.string(mandatory = True, doc = "Its presence decides that the library is there."),
        "optional": attr.bool(doc = "If missing, its targets are incompatible; otherwise an error."),
        "package": attr.string(mandatory = True, doc = "The Debian package, for the error message."),
        "pkg_config": attr.string(doc = "Name of the .pc module; none for header-only libraries."),
        "targets": attr.string_list(mandatory = True, doc = "The names upstream uses."),
        "_self": attr.label(default = "//bazel:system.bzl"),
    },
    configure = True,
    doc = "An installed library. `@NAME//:installed` is a config_setting that is true if it is there.",
    environ = _ENVIRON,
    local = True,
)

# --- Abseil -----------------------------------------------------------------------------------------

# Upstream's package of each target. Where the .pc name is not absl_<target> it stands behind a colon.
# A version that lacks one of them simply has no such target.
_ABSEIL = {
    "algorithm": ["algorithm", "container:algorithm_container"],
    "base": [
        "base",
        "config",
        "core_headers",
        "dynamic_annotations",
        "log_severity",
        "no_destructor",
        "nullability",
        "prefetch",
    ],
    "cleanup": ["cleanup"],
    "container": [
        "btree",
        "fixed_array",
        "flat_hash_map",
        "flat_hash_set",
        "inlined_vector",
        "node_hash_map",
        "node_hash_set",
    ],
    "crc": ["crc32c"],
    "debugging": ["failure_signal_handler", "leak_check", "stacktrace", "symbolize"],
    "flags": [
        "commandlineflag:flags_commandlineflag",
        "config:flags_config",
        "flag:flags",
        "marshalling:flags_marshalling",
        "parse:flags_parse",
        "reflection:flags_reflection",
        "usage:flags_usage",
    ],
    "functional": ["any_invocable", "bind_front", "function_ref", "overload"],
    "hash": ["hash"],
    "log": [
        "absl_check",
        "absl_log",
        "check",
        "die_if_null",
        "flags:log_flags",
        "globals:log_globals",
        "initialize:log_initialize",
        "log",
        "log_entry",
        "log_sink",
        "log_sink_registry",
        "log_streamer",
        "structured:log_structured",
    ],
    "memory": ["memory"],
    "meta": ["type_traits"],
    "numeric": ["bits", "int128"],
    "random": [
        "bit_gen_ref:random_bit_gen_ref",
        "distributions:random_distributions",
        "random:random_random",
        "seed_gen_exception:random_seed_gen_exception",
        "seed_sequences:random_seed_sequences",
    ],
    "status": ["status", "statusor"],
    "strings": ["cord", "has_absl_stringify", "str_format", "string_view", "strings"],
    "synchronization": ["synchronization"],
    "time": ["civil_time", "clock_interface", "simulated_clock", "time", "time_zone"],
    "types": [
        "any",
        "bad_any_cast",
        "bad_optional_access",
        "bad_variant_access",
        "compare",
        "optional",
        "span",
        "variant",
    ],
    "utility": ["utility"],
}

def _parse_pc(text):
    """Returns the `Requires` and `Libs` of a .pc file, variables expanded."""
    variables = {}
    fields = {"Libs": "", "Requires": ""}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and ":" not in name and " " not in name.strip():
            for known in variables:
                value = value.replace("${%s}" % known, variables[known])
            variables[name.strip()] = value.strip()
            continue
        name, _, value = line.partition(":")
        if name in fields:
            for known in variables:
                value = value.replace("${%s}" % known, variables[known])
            fields[name] = value.strip()
    requires = [r.strip().split(" ")[0] for r in fields["Requires"].split(",")]
    return struct(
        libs = [f for f in fields["Libs"].split(" ") if f],
        requires = [r for r in requires if r],
    )

def _system_abseil_impl(ctx):
    where = _pkg_config(ctx, ["--variable=pcfiledir", "absl_base"])
    if not where:
        fail("Abseil is not installed: no absl_base.pc found. Run ./bazelw, which installs what is " +
             "missing on Debian, or install it by hand (packages libabsl-dev and pkg-config).")

    # One private target per .pc file, in one package; the upstream labels are aliases to them.
    lines = [
        "load(\"@rules_cc//cc:defs.bzl\", \"cc_library\")",
        "package(default_visibility = [\"//:__subpackages__\"])",
    ]
    modules = {}
    for entry in ctx.path(where).readdir():
        name = entry.basename
        if not name.startswith("absl_") or not name.endswith(".pc"):
            continue
        modules[name[:-3]] = _parse_pc(ctx.read(entry))
    for name in sorted(modules.keys()):
        lines += [
            "cc_library(",
            "    name = \"%s\"," % name,
            "    linkopts = %r," % modules[name].libs,
            "    deps = %r," % [":" + r for r in modules[name].requires if r in modules],
            ")",
        ]
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", "\n".join(lines) + "\n")

    for package in sorted(_ABSEIL.keys()):
        lines = ["package(default_visibility = [\"//visibility:public\"])"]
        for spec in _ABSEIL[package]:
            target, _, module = spec.partition(":")
            module = "absl_" + (module or target)
            if module in modules:
                lines += [
                    "alias(",
                    "    name = \"%s\"," % target,
                    "    actual = \"//:%s\"," % module,
                    ")",
                ]
        ctx.file("absl/%s/BUILD" % package, "\n".join(lines) + "\n")

system_abseil = repository_rule(
    implementation = _system_abseil_impl,
    configure = True,
    doc = "The installed Abseil under upstream's labels, such as @com_google_absl//absl/status:statusor.",
    environ = _ENVIRON,
    local = True,
)
