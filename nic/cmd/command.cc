// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <optional>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "nic/cmd/demo.h"
#include "nic/cmd/devices.h"
#include "nic/cmd/forward.h"
#include "nic/cmd/options.h"
#include "nic/cmd/report.h"
#include "nic/cmd/run_metrics.h"
#include "nic/cmd/stats_file.h"
#include "nic/wire/open.h"

namespace dmakit::nic::cmd {
namespace {

int Fail(const Environment& environment, int code, const std::string& message) {
  *environment.err << "dmakit: " << absl::StrReplaceAll(message, {{"\n", " "}}) << std::endl;
  return code;
}

int Fail(const Environment& environment, int code, const absl::Status& status) {
  return Fail(environment, code, std::string(status.message()));
}

std::string PortHelp(const BackendRegistry& registry) {
  std::string text =
      absl::StrCat("PORT is BACKEND[,key=value...],wire=WIRE with wire= last.\nWIRE is one of ",
                   std::string(WireHelp()), ".\nBackends:\n");
  for (const auto& backend : registry.all()) {
    absl::StrAppend(&text, "  ", std::string(backend->name()), "  ", std::string(backend->help()),
                    "\n");
  }
  return text;
}

void DescribeForward(CLI::App& app, ForwardText& text, const BackendRegistry& registry) {
  const auto option = [&app](const char* name, std::optional<std::string>& to, const char* type,
                             const char* help) { app.add_option(name, to, help)->type_name(type); };
  option("--in", text.in, "PORT", "receive here (required)");
  option("--out", text.out, "PORT", "transmit here (required)");
  app.add_flag("--both", text.both, "move frames from --out to --in as well");
  option("--count", text.count, "N", "stop after this many frames");
  option("--seconds", text.seconds, "S", "stop after this time; fractions are allowed");
  option("--burst", text.burst, "N", "packets per call of the driver (default 32)");
  option("--queues", text.queues, "N", "receive and transmit queues (default 1)");
  option("--threads", text.threads, "N",
         "threads that serve the queues, 1 to --queues (default: one does all, NIC models too)");
  option("--ring", text.ring, "N", "descriptors per queue (default 512)");
  option("--mtu", text.mtu, "N", "68 to 9000 (default 9000); a frame may have 18 bytes more");
  option("--page-order", text.page_order, "N", "receive pages of 4096 << N bytes (default: fit)");
  option("--policy", text.policy, "NAME", "persistent (default), deferred or strict");
  app.add_option("--audit", text.audit,
                 "check every DMA operation (--audit=checked: and contents); errors exit 1")
      ->type_name("[MODE]")
      ->expected(0, 1)
      ->default_str("on");
  option("--stats", text.stats, "FILE", "write totals and all counters");
  option("--stats-format", text.stats_format, "NAME", "json (default), prometheus or text");
  app.footer(PortHelp(registry));
}

void DescribeDevices(CLI::App& app, DevicesText& text) {
  app.add_option("--sysfs", text.sysfs, "look here (default /sys)")->type_name("ROOT");
  app.add_option("--proc", text.proc, "routes and addresses (default /proc)")->type_name("ROOT");
  app.add_flag("--json", text.json, "print one JSON object");
}

// Rate and drops, on one line that is overwritten.
std::function<void(dma::Nanos, uint64_t, uint64_t)> Progress(std::ostream& err) {
  uint64_t last_frames = 0;
  dma::Nanos last{0};
  return [&err, last_frames, last](dma::Nanos elapsed, uint64_t frames, uint64_t drops) mutable {
    const double seconds = std::chrono::duration<double>(elapsed - last).count();
    const double rate = static_cast<double>(frames - last_frames) / std::max(seconds, 1e-9);
    err << absl::StrFormat("\r%d frames, %.0f frames/s, %d dropped\x1b[K", frames, rate, drops)
        << std::flush;
    last_frames = frames;
    last = elapsed;
  };
}

int Forward(const ForwardText& text, const BackendRegistry& registry, const Environment& env) {
  const auto options = ParseForward(text);
  if (!options.ok()) return Fail(env, kExitUsage, options.status());
  std::optional<StatsFile> stats;
  if (options->stats_file) {
    auto file = StatsFile::Create(ResolvePath(*options->stats_file, env.working_directory));
    if (!file.ok()) return Fail(env, kExitUsage, file.status());
    stats.emplace(*std::move(file));
  }
  RunHooks hooks;
  hooks.interrupted = env.interrupted;
  if (env.terminal) hooks.progress = Progress(*env.err);
  const auto run = RunForward(registry, *options, env.working_directory, hooks);
  if (env.terminal) *env.err << "\r\x1b[K" << std::flush;
  if (!run.ok()) return Fail(env, kExitUsage, run.status());

  const Totals totals = ComputeTotals(*run);
  *env.out << ToText(*run, totals) << std::flush;
  if (!run->rig.policy_fallback.empty()) {
    *env.err << "dmakit: --policy=deferred fell back to strict: " << run->rig.policy_fallback
             << std::endl;
  }
  // One line, whatever happened; bad input explains the rest and comes first.
  int code = kExitDone;
  std::vector<std::string> failures = FindProblems(*run, totals);
  if (!failures.empty()) code = kExitLost;
  if (!run->source_status.ok()) {
    code = kExitUsage;
    failures.insert(failures.begin(), absl::StrCat("--in: ", run->source_status.message()));
  }
  if (stats) {
    const absl::Status written = stats->Write(ToStats(options->stats_format, *run, totals));
    if (!written.ok()) {
      code = kExitUsage;
      failures.emplace_back(written.message());
    }
  }
  return failures.empty() ? code : Fail(env, code, absl::StrJoin(failures, "; "));
}

}  // namespace

int RunCommand(const std::vector<std::string>& args, const BackendRegistry& registry,
               const Environment& env) {
  CLI::App app("DMA memory for userspace NIC drivers: drivers at work", "dmakit");
  app.require_subcommand(0, 1);
  CLI::App* const demo = app.add_subcommand(
      "demo", "Moves a bundled capture through every backend and prints one table");
  CLI::App* const forward =
      app.add_subcommand("forward", "Receives on one port and transmits on the other");
  ForwardText text;
  DescribeForward(*forward, text, registry);
  CLI::App* const devices =
      app.add_subcommand("devices", "Lists the NICs of this machine and what each needs first");
  DevicesText devices_text;
  DescribeDevices(*devices, devices_text);

  const std::string help = "; see dmakit --help";
  for (const std::string& arg : args) {
    // CLI11 would take the next argument for the value.
    if (arg.starts_with("--") && arg.find('=') == arg.size() - 1) {
      return Fail(env, kExitUsage, absl::StrCat(arg, " must be followed by a value", help));
    }
  }
  try {
    std::vector<std::string> reversed(args.rbegin(), args.rend());  // as CLI11 wants them
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    *env.out << app.help() << std::flush;  // of the command that was asked
    return kExitDone;
  } catch (const CLI::ParseError& error) {
    return Fail(env, kExitUsage, absl::StrCat(error.what(), help));
  }
  int code = kExitDone;
  if (demo->parsed()) {
    code = RunDemo(registry, env);
  } else if (forward->parsed()) {
    code = Forward(text, registry, env);
  } else if (devices->parsed()) {
    code = RunDevices(devices_text, registry, env);
  } else {
    return Fail(env, kExitUsage,
                absl::StrCat("a command must follow: demo, forward or devices", help));
  }
  if (!env.out->good()) {
    return std::max(code, Fail(env, kExitUsage,
                               "standard output cannot be written; redirect it to "
                               "a file with room"));
  }
  return code;
}

}  // namespace dmakit::nic::cmd
