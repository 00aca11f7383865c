// SPDX-License-Identifier: Apache-2.0
//
// The main() of every test.

// Under a sanitizer, its report of a crash says more than Catch2's signal handler.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CATCH_CONFIG_NO_POSIX_SIGNALS
#endif

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>

int main(int argc, char* argv[]) { return Catch::Session().run(argc, argv); }
#else
#define CATCH_CONFIG_MAIN
#include "tests/catch.h"
#endif
