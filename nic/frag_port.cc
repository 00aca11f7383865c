// SPDX-License-Identifier: Apache-2.0

#include "nic/frag_port.h"

#include "absl/strings/str_cat.h"
#include "dma/address_space.h"
#include "dma/poll.h"

namespace dmakit::nic {

namespace internal {

absl::Status NotChanged(std::string_view name, const absl::Status& why, const absl::Status& back) {
  // Not as an argument that was refused: the port did pause.
  return absl::AbortedError(absl::StrCat(
      std::string(name), ": not changed: ", why.message(), "; ",
      back.ok() ? "the port is as before" : absl::StrCat("the port is stopped: ", back.message())));
}

absl::Status StoppedByChange(const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(why.message(), "; the port is stopped"));
}

absl::Status StillHeld(const absl::Status& stopped, const std::string& held) {
  return absl::DeadlineExceededError(
      absl::StrCat(stopped.ok() ? "" : stopped.message(), stopped.ok() ? "" : "; ", held));
}

}  // namespace internal

absl::StatusOr<std::vector<FragSource>> FragPortBase::MakeSources(const PortOptions& options,
                                                                  const RxBuffers& buffers) {
  absl::StatusOr<RxPoolPlan> plan = PlanRxPool(options, buffers.count, buffers.capacity);
  if (!plan.ok()) return plan.status();
  std::vector<FragSource> sources;
  for (uint32_t i = 0; i < options.rx_queues; ++i) {
    if (i < pools_.size()) {
      // Old pages stay for as long as somebody has them; what nobody had went with TrimPools.
      held_[i] = Bytes(pools_[i]->stats().bytes);
      absl::Status s =
          pools_[i]->SetLimits(plan->order, plan->min_order, plan->max_bytes + held_[i]);
      if (!s.ok()) return s;
    } else {
      auto pool = NewRxPool(device_->address_space(), options, *plan,
                            absl::StrCat(std::string(device_->name()), " rq ", i, " buffers"),
                            device_->waiter());
      if (!pool.ok()) return pool.status();
      pools_.push_back(*std::move(pool));
      held_.emplace_back(0);
    }
    // A frame longer than the MTU allows does not fit: the device reports it and drops it.
    auto source = FragSource::Create(
        *pools_[i],
        {.size = plan->buffer_size, .headroom = options.headroom, .capacity = plan->capacity});
    if (!source.ok()) return source.status();
    sources.push_back(*std::move(source));
  }
  return sources;
}

absl::Status FragPortBase::CheckFixed(const PortOptions& options) const {
  const auto fixed = [&](bool same, const char* what) {
    return same ? absl::OkStatus()
                : absl::InvalidArgumentError(
                      absl::StrCat(std::string(name()), ": ", what,
                                   " cannot be changed while the port is open; open it anew"));
  };
  for (const absl::Status& s : {
           fixed(options.policy == options_.policy, "policy"),
           fixed(options.vlan_strip == options_.vlan_strip, "vlan_strip"),
           fixed(options.interrupts == options_.interrupts, "interrupts"),
           fixed(options.coalescing == options_.coalescing, "coalescing"),
           fixed(options.extra_pages == options_.extra_pages, "extra_pages"),
           fixed(options.stop_deadline == options_.stop_deadline, "stop_deadline"),
       }) {
    if (!s.ok()) return s;
  }
  if (options.interrupts && options.rx_queues > interrupts_.notifiers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(name()), ": receive queues ", options.rx_queues, ": there are notifiers for ",
        interrupts_.notifiers.size(), "; open the port with as many queues as it will have"));
  }
  return absl::OkStatus();
}

absl::Status FragPortBase::SetPoolOrder(const PortOptions& options, const RxPoolPlan& plan,
                                        const RxPoolPlan& before) {
  for (uint32_t i = 0; i < options.rx_queues; ++i) {
    // The queues are at work: pages nobody holds are still there, and must not add up.
    const Bytes held = std::min(Bytes(pools_[i]->stats().bytes), before.max_bytes + held_[i]);
    absl::Status s = pools_[i]->SetLimits(plan.order, plan.min_order, plan.max_bytes + held);
    if (!s.ok()) return s;
  }
  options_ = options;
  return absl::OkStatus();
}

// --- Interrupts ----------------------------------------------------------------------------------

absl::Status FragPortBase::ConnectInterrupts(PortInterrupts interrupts) {
  const size_t given = interrupts.notifiers.size();
  if (interrupts.source == nullptr || given < options_.rx_queues) {
    return absl::FailedPreconditionError(absl::StrCat(
        std::string(name()), ": interrupts: ", given, " notifiers for ", options_.rx_queues,
        " receive queues", interrupts.source == nullptr ? ", and no source" : "",
        "; connect one for each, or leave PortOptions::interrupts off"));
  }
  interrupts_ = std::move(interrupts);
  for (uint32_t i = 0; i < options_.rx_queues; ++i) {
    absl::Status s = interrupts_.source->Connect(i, interrupts_.notifiers[i].get());
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

void FragPortBase::DisconnectInterrupts() {
  for (uint32_t i = 0; i < interrupts_.notifiers.size(); ++i) {
    interrupts_.source->Connect(i, nullptr).IgnoreError();
  }
}

void FragPortBase::WakeAll() {
  for (const std::unique_ptr<Notifier>& notifier : interrupts_.notifiers) notifier->Notify();
}

// --- Pages ---------------------------------------------------------------------------------------

uint64_t FragPortBase::PagesHeld(size_t i) const {
  const uint64_t waiting = pools_[i]->stats().pages_waiting_flush;
  const uint64_t in_use = pools_[i]->pages_in_use();
  return in_use > waiting ? in_use - waiting : 0;
}

bool FragPortBase::WaitForPages(dma::Nanos start) {
  dma::Waiter& waiter = device_->waiter();
  const dma::Nanos passed = std::max(waiter.Now() - start, dma::Nanos{0});  // time may go back
  return dma::PollUntil(waiter, options_.stop_deadline - passed, [&] {
    uint64_t held = 0;
    for (size_t i = 0; i < pools_.size(); ++i) {
      pools_[i]->Fold();
      held += PagesHeld(i);
    }
    return held == 0;
  });
}

void FragPortBase::TrimPools() {
  for (const std::unique_ptr<frag::PagePool>& pool : pools_) pool->Fold();
  // Under the deferred policy their pages now wait for a flush. What fails is quarantined.
  dma::FlushQueue* const queue = device_->address_space().flush_queue();
  if (queue != nullptr && !pools_.empty()) queue->Flush().IgnoreError();
  for (const std::unique_ptr<frag::PagePool>& pool : pools_) pool->Trim();
}

std::string FragPortBase::DescribeHeld() const {
  std::string words;
  for (size_t i = 0; i < pools_.size(); ++i) {
    const uint64_t held = PagesHeld(i);
    if (held == 0) continue;
    absl::StrAppend(&words, words.empty() ? "" : "; ", pools_[i]->options().label, ": ", held,
                    " pages are still held by packets or by the device; release the packets before "
                    "the port is destroyed, or its pages go to quarantine");
  }
  return words;
}

}  // namespace dmakit::nic
