/*
 * input.h - an input as a program: each step takes some bytes of it
 */
#ifndef SOFTHCA_TESTS_FUZZ_INPUT_H
#define SOFTHCA_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

/* The next n bytes as a number, as far as there are any. */
static inline uint32_t take(struct input *in, size_t n)
{
	uint32_t v = 0;

	for (; n && in->left; n--, in->left--)
		v = v << 8 | *in->p++;
	return v;
}

/* Bytes of the input over the n bytes at p, as far as there are any. */
static inline void write_some(struct input *in, void *p, size_t n)
{
	n = n < in->left ? n : in->left;
	memcpy(p, in->p, n);
	in->p += n;
	in->left -= n;
}

#endif
