// SPDX-License-Identifier: Apache-2.0
//
// Meter marks the instructions that belong to one operation, for callgrind, which counts nothing
// else (--collect-atstart=no) and writes the sum under the operation's name. Without callgrind it
// does nothing. Switching costs some ten instructions a time, so cheap operations are counted in
// batches. One thread.
#ifndef DMAKIT_BENCHMARKS_BUDGET_METER_H_
#define DMAKIT_BENCHMARKS_BUDGET_METER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "valgrind/callgrind.h"

namespace dmakit::budget {

class Meter {
 public:
  explicit Meter(std::string_view operation) : operation_(operation) {}
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  // From here on; what ran before was to warm up.
  void Arm() { armed_ = true; }

  // Runs `body`, which does `operation` `times` times; counts it if that is the meter's.
  template <typename Body>
  void Run(std::string_view operation, uint64_t times, Body&& body) {
    if (!armed_ || operation != operation_) {
      body();
      return;
    }
    times_ += times;
    running_ = true;
    CALLGRIND_TOGGLE_COLLECT;
    body();
    CALLGRIND_TOGGLE_COLLECT;
    running_ = false;
  }

  // Runs `body`, called from inside a counted operation, without counting it.
  template <typename Body>
  void Except(Body&& body) {
    if (running_) CALLGRIND_TOGGLE_COLLECT;
    body();
    if (running_) CALLGRIND_TOGGLE_COLLECT;
  }

  void Write() const {
    CALLGRIND_DUMP_STATS_AT((operation_ + "/" + std::to_string(times_)).c_str());
  }

  uint64_t times() const { return times_; }

 private:
  const std::string operation_;
  uint64_t times_ = 0;
  bool armed_ = false;
  bool running_ = false;
};

// `warm` rounds that are not counted, then `rounds` that are; `round(meter)` calls Meter::Run.
// Returns how often the operation was counted.
template <typename Round>
uint64_t Measure(Meter& meter, int warm, int rounds, Round&& round) {
  for (int i = 0; i < warm; ++i) round();
  meter.Arm();
  for (int i = 0; i < rounds; ++i) round();
  meter.Write();
  return meter.times();
}

}  // namespace dmakit::budget

#endif  // DMAKIT_BENCHMARKS_BUDGET_METER_H_
