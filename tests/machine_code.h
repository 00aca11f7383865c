// SPDX-License-Identifier: Apache-2.0
//
// The machine code of a program, as objdump prints it, for tests of what a fast path must not
// contain; and the output of other programs. What is forbidden where is said by the tests.
#ifndef DMAKIT_TESTS_MACHINE_CODE_H_
#define DMAKIT_TESTS_MACHINE_CODE_H_

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace dmakit::testing {

// Empty if there is no such program.
inline std::string OutputOf(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string out;
  std::array<char, 1 << 16> buffer;
  while (pipe != nullptr) {
    const size_t n = fread(buffer.data(), 1, buffer.size(), pipe.get());
    if (n == 0) break;
    out.append(buffer.data(), n);
  }
  return out;
}

using MachineCode = std::map<std::string, std::vector<std::string>>;  // function -> instructions

inline MachineCode Disassemble(const std::string& binary) {
  MachineCode code;
  std::istringstream lines(OutputOf("objdump -d -C --no-show-raw-insn " + binary));
  std::string line, function;
  while (std::getline(lines, line)) {
    const size_t open = line.find(" <");
    if (!line.empty() && line[0] == '0' && open != std::string::npos && line.ends_with(">:")) {
      function = line.substr(open + 2, line.size() - open - 4);
    } else if (const size_t tab = line.find(":\t"); tab != std::string::npos) {
      code[function].push_back(line.substr(tab + 2));
    }
  }
  return code;
}

// The function a direct call or jump goes to; empty for other instructions and for jumps inside.
inline std::string Target(const std::string& instruction, const std::string& function) {
  if (instruction[0] != 'j' && !instruction.starts_with("call")) return "";
  const size_t open = instruction.find('<');
  if (open == std::string::npos || !instruction.ends_with(">")) return "";
  std::string name = instruction.substr(open + 1, instruction.size() - open - 2);
  if (const size_t plus = name.rfind("+0x"); plus != std::string::npos) name.resize(plus);
  return name == function ? "" : name;
}

// Locked or a fence. An exchange with memory is locked without saying so; one between registers is
// padding.
inline bool IsLocked(const std::string& instruction) {
  return instruction.starts_with("lock ") || instruction.find("fence") != std::string::npos ||
         (instruction.starts_with("xchg") && instruction.find('(') != std::string::npos);
}

// A call or jump through a pointer, which cannot be followed.
inline bool IsIndirect(const std::string& instruction) {
  return (instruction.starts_with("call") || instruction.starts_with("jmp")) &&
         instruction.find('*') < instruction.find('<');
}

}  // namespace dmakit::testing

#endif  // DMAKIT_TESTS_MACHINE_CODE_H_
