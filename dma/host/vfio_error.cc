// SPDX-License-Identifier: Apache-2.0

#include "dma/host/vfio_error.h"

#include <iterator>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace dmakit::dma::host {
namespace {

// The payload's one byte is the problem's number.
constexpr char kPayload[] = "dmakit.dma.host/vfio-problem";
constexpr VfioProblem kLast = VfioProblem::kKernel;

absl::StatusCode CodeOf(VfioProblem problem) {
  switch (problem) {
    case VfioProblem::kNoVfio:
    case VfioProblem::kNoDevice:
      return absl::StatusCode::kNotFound;
    case VfioProblem::kUnsupported:
      return absl::StatusCode::kUnimplemented;
    case VfioProblem::kNoInterruptRemapping:
    case VfioProblem::kPermission:
      return absl::StatusCode::kPermissionDenied;
    case VfioProblem::kMemlock:
    case VfioProblem::kBudget:
      return absl::StatusCode::kResourceExhausted;
    case VfioProblem::kWidth:
      return absl::StatusCode::kOutOfRange;
    case VfioProblem::kShape:
      return absl::StatusCode::kInvalidArgument;
    case VfioProblem::kOverlap:
      return absl::StatusCode::kAlreadyExists;
    case VfioProblem::kKernel:
      return absl::StatusCode::kInternal;
    case VfioProblem::kNoIommu:
    case VfioProblem::kDriver:
    case VfioProblem::kGroupNotViable:
    case VfioProblem::kBusy:
    case VfioProblem::kMemory:
      break;
  }
  return absl::StatusCode::kFailedPrecondition;
}

}  // namespace

std::string_view Name(VfioProblem problem) {
  static constexpr std::string_view kNames[] = {"no VFIO",
                                                "unsupported",
                                                "no such device",
                                                "no IOMMU",
                                                "another driver",
                                                "group not viable",
                                                "no interrupt remapping",
                                                "no permission",
                                                "busy",
                                                "locked memory limit",
                                                "outside of the IOMMU's range",
                                                "no mapping left",
                                                "bad shape",
                                                "overlap",
                                                "memory not there",
                                                "kernel error"};
  static_assert(std::size(kNames) == static_cast<size_t>(kLast) + 1);
  const auto index = static_cast<size_t>(problem);
  return index < std::size(kNames) ? kNames[index] : "invalid";
}

absl::Status VfioError(VfioProblem problem, std::string_view message) {
  absl::Status status(CodeOf(problem), absl::string_view(message.data(), message.size()));
  status.SetPayload(kPayload, absl::Cord(std::string(1, static_cast<char>(problem))));
  return status;
}

std::optional<VfioProblem> VfioProblemOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload || payload->size() != 1) return std::nullopt;
  const auto number = static_cast<uint8_t>((*payload)[0]);
  if (number > static_cast<uint8_t>(kLast)) return std::nullopt;
  return static_cast<VfioProblem>(number);
}

std::string ErrnoText(int error) {
  return absl::StrCat(std::generic_category().message(error), " (errno ", error, ")");
}

}  // namespace dmakit::dma::host
