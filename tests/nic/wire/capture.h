// SPDX-License-Identifier: Apache-2.0
//
// Capture files made and read byte by byte, without libpcap, so that tests compare libpcap's view
// with the formats' own definitions. Header only; single-threaded test code.
#ifndef DMAKIT_TESTS_NIC_WIRE_CAPTURE_H_
#define DMAKIT_TESTS_NIC_WIRE_CAPTURE_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nic/wire/memory_wire.h"

namespace dmakit::nic::testing {

inline constexpr uint32_t kMicroMagic = 0xa1b2c3d4;
inline constexpr uint32_t kNanoMagic = 0xa1b23c4d;

struct Record {
  Frame frame;
  uint32_t seconds = 0;
  uint32_t fraction = 0;  // micro- or nanoseconds, as the magic says
  uint32_t length = 0;    // on the wire; 0: that of `frame`
};

// Builds the bytes of a file, in either byte order.
class ByteWriter {
 public:
  explicit ByteWriter(bool big_endian = false) : big_(big_endian) {}
  ByteWriter& U16(uint16_t v) { return Int(v, 2); }
  ByteWriter& U32(uint32_t v) { return Int(v, 4); }
  ByteWriter& Raw(const Frame& frame) {
    bytes_.append(reinterpret_cast<const char*>(frame.data()), frame.size());
    return *this;
  }
  ByteWriter& Pad(size_t multiple) {
    while (bytes_.size() % multiple != 0) bytes_.push_back('\0');
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  ByteWriter& Int(uint64_t v, int width) {
    for (int i = 0; i < width; ++i) {
      bytes_.push_back(static_cast<char>(v >> (8 * (big_ ? width - 1 - i : i))));
    }
    return *this;
  }
  bool big_;
  std::string bytes_;
};

inline std::string PcapHeader(uint32_t magic = kNanoMagic, uint32_t link = 1,
                              bool big_endian = false, uint32_t snap = 262144) {
  ByteWriter w(big_endian);
  w.U32(magic).U16(2).U16(4).U32(0).U32(0).U32(snap).U32(link);
  return w.bytes();
}

inline std::string PcapRecord(const Record& r, bool big_endian = false) {
  ByteWriter w(big_endian);
  const uint32_t size = static_cast<uint32_t>(r.frame.size());
  w.U32(r.seconds).U32(r.fraction).U32(size).U32(r.length != 0 ? r.length : size).Raw(r.frame);
  return w.bytes();
}

// A section, one Ethernet interface with nanosecond timestamps, one enhanced packet block each.
inline std::string PcapNg(const std::vector<Record>& records) {
  ByteWriter w;
  w.U32(0x0a0d0d0a).U32(28).U32(0x1a2b3c4d).U16(1).U16(0).U32(~0u).U32(~0u).U32(28);
  w.U32(1).U32(32).U16(1).U16(0).U32(262144);
  w.U16(9).U16(1).U32(9).U16(0).U16(0).U32(32);  // if_tsresol = 9, end of options
  for (const Record& r : records) {
    const uint32_t size = static_cast<uint32_t>(r.frame.size());
    const uint32_t total = 32 + (size + 3) / 4 * 4;
    const uint64_t time = uint64_t{r.seconds} * 1'000'000'000 + r.fraction;
    w.U32(6)
        .U32(total)
        .U32(0)
        .U32(static_cast<uint32_t>(time >> 32))
        .U32(static_cast<uint32_t>(time));
    w.U32(size).U32(r.length != 0 ? r.length : size).Raw(r.frame).Pad(4).U32(total);
  }
  return w.bytes();
}

// A frame with a recognisable content: `seed` and the position decide each byte.
inline Frame MakeFrame(size_t size, uint32_t seed) {
  Frame frame(size);
  for (size_t i = 0; i < size; ++i) {
    frame[i] = std::byte((seed * 2654435761u + i * 40503u + (i >> 8)) >> 5);
  }
  return frame;
}

inline std::string TempPath(const std::string& name) {
  const char* const dir = std::getenv("TEST_TMPDIR");
  return std::string(dir != nullptr ? dir : "/tmp") + "/" + name;
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::string WriteCapture(const std::string& name, const std::vector<Frame>& frames) {
  std::string bytes = PcapHeader();
  uint32_t n = 0;
  for (const Frame& frame : frames) {
    const uint32_t time = n++;
    bytes += PcapRecord({frame, 1'700'000'000 + time, time});
  }
  const std::string path = TempPath(name);
  WriteFile(path, bytes);
  return path;
}

// Reads a little-endian nanosecond pcap file; nullopt if anything about it is not as it should be.
inline std::optional<std::vector<Record>> ReadCapture(const std::string& path) {
  const std::string bytes = ReadFile(path);
  const std::string header = PcapHeader();
  if (bytes.substr(0, header.size()) != header) return std::nullopt;
  std::vector<Record> records;
  size_t at = header.size();
  while (at < bytes.size()) {
    uint32_t words[4];
    if (bytes.size() - at < sizeof(words)) return std::nullopt;
    std::memcpy(words, bytes.data() + at, sizeof(words));
    at += sizeof(words);
    if (words[2] != words[3] || bytes.size() - at < words[2]) return std::nullopt;
    Frame frame(words[2]);
    std::memcpy(frame.data(), bytes.data() + at, frame.size());
    at += frame.size();
    records.push_back({std::move(frame), words[0], words[1], words[3]});
  }
  return records;
}

inline std::optional<std::vector<Frame>> ReadFrames(const std::string& path) {
  auto records = ReadCapture(path);
  if (!records) return std::nullopt;
  std::vector<Frame> frames;
  for (Record& r : *records) frames.push_back(std::move(r.frame));
  return frames;
}

}  // namespace dmakit::nic::testing

#endif  // DMAKIT_TESTS_NIC_WIRE_CAPTURE_H_
