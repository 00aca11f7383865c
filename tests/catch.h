// SPDX-License-Identifier: Apache-2.0
//
// Catch2 for the tests of this tree, whichever major version is installed: 2.x has one header, 3.x
// has many. Tests include this file and nothing of Catch2, and use only what both versions have.
// Assertions of Catch2 are not thread-safe: threads of a test collect, its main thread asserts.

#ifndef DMAKIT_TESTS_CATCH_H_
#define DMAKIT_TESTS_CATCH_H_

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#endif  // DMAKIT_TESTS_CATCH_H_
