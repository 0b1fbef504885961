/*
 * input.h - an input as a program: each step takes some bytes of it
 */
#ifndef SOFTHCA_TESTS_FUZZ_INPUT_H
#define SOFTHCA_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

struct input {
	const uint8_t *p;
	size_t left;
};

/* The next byte; 0 behind the last. */
static inline uint8_t byte(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->p++;
}

/* Three bytes. */
static inline uint32_t word(struct input *in)
{
	uint32_t v = byte(in);

	v = v << 8 | byte(in);
	return v << 8 | byte(in);
}

#endif
