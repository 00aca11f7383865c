// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/report.h"

#include <string>

#include "nlohmann/json.hpp"
#include "tests/catch.h"

namespace dmakit::nic::cmd {
namespace {

// A clean run of 100 frames.
RunRecord Clean() {
  RunRecord run;
  run.mtu = 1500;
  run.source.frames_to_nic = run.sink.frames_from_nic = 100;
  run.source.bytes_to_nic = run.sink.bytes_from_nic = 6000;
  run.loop.forwarded = 100;
  run.loop.driver_time = dma::Nanos{5000};
  for (NicReport* nic : {&run.rig.in, &run.rig.out}) {
    nic->port.queues.resize(2);
    nic->domain.maps = 10;
    nic->domain.unmaps = 9;
    nic->domain.invalidations = 8;
    nic->walks.emplace().walks = 7;
  }
  return run;
}

std::vector<std::string> Problems(const RunRecord& run) {
  return FindProblems(run, ComputeTotals(run));
}

TEST_CASE("totals add up wires and domains") {
  RunRecord run = Clean();
  run.rig.in.port.queues[0].pool.bytes_peak = 1;
  run.rig.in.port.queues[1].pool.bytes_peak = 2;
  const Totals t = ComputeTotals(run);
  CHECK(t.frames_in == 100);
  CHECK(t.frames_out == 100);
  CHECK(t.bytes_in == 6000);
  CHECK(t.dma_maps == 20);
  CHECK(t.dma_unmaps == 18);
  CHECK(t.iotlb_invalidations == 16);
  CHECK(t.iommu_walks == 14);
  CHECK(t.pool_bytes == 3);
  CHECK(t.driver_ns_per_frame == 50.0);
  CHECK(Problems(run).empty());
}

TEST_CASE("a domain that both ports are behind counts once") {
  RunRecord run = Clean();
  run.rig.shared_domain = true;
  CHECK(ComputeTotals(run).dma_maps == 10);
  CHECK(ComputeTotals(run).iommu_walks == 7);
}

TEST_CASE("every frame that does not come out is lost, explained or not") {
  RunRecord run = Clean();
  run.source.frames_to_nic = 110;
  run.source.refused_short = run.source.refused = 1;
  run.source.refused_bytes = 13;
  run.rig.in.port.queues[1].rx.truncated = 2;
  run.rig.in.port.queues[0].rx.bad_fcs = 1;
  run.rig.out.port.queues[0].tx.dropped = 3;
  run.sink.lost = 4;
  run.sink.lost_bytes = 240;
  const Totals t = ComputeTotals(run);
  CHECK(t.frames_in == 111);
  CHECK(t.bytes_in == 6013);
  CHECK(t.frames_out == 96);
  CHECK(t.bytes_out == 5760);
  CHECK(t.frames_dropped == 15);
  CHECK(Problems(run) ==
        std::vector<std::string>{
            "15 of 111 frames lost (1 shorter than 14 bytes, refused at the wire, 2 longer than "
            "--mtu=1500 allows (raise it, up to 9000), 1 with a bad FCS, 3 dropped by the transmit "
            "driver, 4 not written, 4 unaccounted for)"});
}

TEST_CASE("both directions add up, and neither makes good what the other loses") {
  RunRecord run = Clean();
  run.both = true;
  run.sink.frames_to_nic = run.source.frames_from_nic = 40;
  run.sink.bytes_to_nic = run.source.bytes_from_nic = 4000;
  run.rig.in.port.queues[0].pool.bytes_peak = 1;
  run.rig.out.port.queues[1].pool.bytes_peak = 2;
  CHECK(Problems(run).empty());
  CHECK(ComputeTotals(run).frames_in == 140);
  CHECK(ComputeTotals(run).frames_out == 140);
  CHECK(ComputeTotals(run).bytes_in == 10000);
  CHECK(ComputeTotals(run).bytes_out == 10000);
  CHECK(ComputeTotals(run).pool_bytes == 3);

  run.source.frames_from_nic += 2;
  run.sink.lost = 1;
  run.rig.in.port.queues[0].tx.dropped = 1;
  run.sink.frames_from_nic -= 1;
  CHECK(ComputeTotals(run).frames_dropped == 2);
  CHECK(Problems(run) ==
        std::vector<std::string>{
            "2 of 140 frames lost (1 dropped by the transmit driver, 1 not written)",
            "2 more frames out than in: something was sent twice"});
}

TEST_CASE("each thing that must not happen is a problem of its own") {
  const auto one = [](auto change) {
    RunRecord run = Clean();
    change(run);
    const auto problems = Problems(run);
    return problems.size() == 1 ? problems[0] : "not one problem";
  };
  CHECK(one([](auto& r) { r.rig.in.walks->stale_uses = 2; }) == "2 stale IOTLB uses");
  CHECK(one([](auto& r) { r.rig.out.fault_count = 2; }) == "2 IOMMU faults");
  CHECK(one([](auto& r) { r.rig.out.violation_count = 2; }) == "2 device model violations");
  CHECK(one([](auto& r) { r.rig.out.domain.live_mappings = 2; }) == "2 mappings leaked");
  CHECK(one([](auto& r) { r.rig.in.port.queues[1].rx.bad_completions = 2; }) ==
        "2 bad receive completions");
  CHECK(one([](auto& r) { r.rig.out.port.queues[1].tx.bad_completions = 2; }) ==
        "2 bad transmit completions");
  CHECK(one([](auto& r) { r.rig.in.port.queues[0].pool.bad_releases = 2; }) ==
        "2 bad page releases");
  CHECK(one([](auto& r) { r.rig.in.port.queues[0].pool.pages_quarantined = 2; }) ==
        "2 quarantined pages");
  CHECK(one([](auto& r) { r.rig.in.port.queues[0].rx.device_error = 9; }) ==
        "1 queues stopped by the device");
  CHECK(one([](auto& r) { r.rig.problems = {"leaked"}; }) == "leaked");
  CHECK(one([](auto& r) { r.loop.stalled = "stuck"; }) == "stuck");
  CHECK(one([](auto& r) { r.sink_status = absl::DataLossError("x"); }) == "x");
  CHECK(one([](auto& r) { r.sink.frames_from_nic = 101; }) ==
        "1 more frames out than in: something was sent twice");
}

TEST_CASE("text and JSON carry the same totals") {
  RunRecord run = Clean();
  run.rig.in.faults = {"somewhere"};
  run.rig.in.port.name = "bad \xff name";
  const Totals t = ComputeTotals(run);
  const std::string text = ToText(run, t);
  CHECK(text.find("dma_maps               20\n") != std::string::npos);
  CHECK(text.find("driver_ns_per_frame    50.0\n") != std::string::npos);
  CHECK(text.find("fault: somewhere\n") != std::string::npos);
  const auto json = nlohmann::json::parse(ToJson(run, t));
  CHECK(json["dma_maps"] == 20);
  CHECK(json["driver_ns_per_frame"] == 50.0);
}

}  // namespace
}  // namespace dmakit::nic::cmd
