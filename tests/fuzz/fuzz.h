/*
 * fuzz.h - what a fuzz target defines, and how it reports errors
 *
 * A target is one file that defines LLVMFuzzerTestOneInput(). It is linked with
 * driver.c for the test suite, and with libFuzzer where SOFTHCA_FUZZ is on.
 */
#ifndef SOFTHCA_TESTS_FUZZ_H
#define SOFTHCA_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* data holds size arbitrary bytes. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Optional: called once, before the first input. */
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

#define FUZZ_CHECK(cond)                                                       \
	do {                                                                   \
		if (!(cond)) {                                                 \
			fprintf(stderr, "%s:%d: does not hold: %s\n",          \
				__FILE__, __LINE__, #cond);                    \
			abort();                                               \
		}                                                              \
	} while (0)

#endif
