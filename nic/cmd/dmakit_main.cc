// SPDX-License-Identifier: Apache-2.0
//
// dmakit: the command line with every backend.

#include "nic/backend.h"
#include "nic/cmd/command.h"
#include "nic/e1000e/backend.h"
#include "nic/enic/backend.h"
#include "nic/liquidio/backend.h"

int main(int argc, char** argv) {
  dmakit::nic::BackendRegistry registry;
  registry.Register(dmakit::nic::enic::NewBackend());
  registry.Register(dmakit::nic::e1000e::NewBackend());
  registry.Register(dmakit::nic::liquidio::NewBackend());
  return dmakit::nic::cmd::RunMain(argc, argv, registry);
}
