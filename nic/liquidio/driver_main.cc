// SPDX-License-Identifier: Apache-2.0
//
// driver: the dmakit command line for liquidio alone.

#include "nic/backend.h"
#include "nic/cmd/command.h"
#include "nic/liquidio/backend.h"

int main(int argc, char** argv) {
  dmakit::nic::BackendRegistry registry;
  registry.Register(dmakit::nic::liquidio::NewBackend());
  return dmakit::nic::cmd::RunMain(argc, argv, registry);
}
