/*
 * pcapng.h - reads what the recorder (trace/pcap.h) has written, and checks on
 * the way that it is pcapng
 */
#ifndef SOFTHCA_TESTS_PCAPNG_H
#define SOFTHCA_TESTS_PCAPNG_H

#include "unit.h"

#include <errno.h>
#include <unistd.h>

struct file {
	uint8_t *data;
	size_t len;
	size_t at;
};

static inline struct file file_read(const char *name)
{
	struct file f = { 0 };
	FILE *in = fopen(name, "re");
	long len;

	assert_non_null(in);
	fseek(in, 0, SEEK_END);
	len = ftell(in);
	assert_true(len >= 0);
	rewind(in);
	f.len = (size_t)len;
	f.data = malloc(f.len + 1);
	assert_non_null(f.data);
	assert_int_equal(fread(f.data, 1, f.len, in), f.len);
	fclose(in);
	return f;
}

static inline uint32_t u32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, 4);
	return v;
}

static inline uint16_t u16(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, 2);
	return v;
}

/* The next block, both lengths checked; 0 at the end of the file. */
static inline uint32_t next_block(struct file *f, const uint8_t **body,
				  size_t *len)
{
	const uint8_t *p = f->data + f->at;
	uint32_t total;

	if (f->at == f->len)
		return 0;
	assert_true(f->len - f->at >= 12);
	total = u32(p + 4);
	assert_int_equal(total % 4, 0);
	assert_true(total >= 12 && total <= f->len - f->at);
	assert_int_equal(u32(p + total - 4), total);
	*body = p + 8;
	*len = total - 12;
	f->at += total;
	return u32(p);
}

/* An option's value in a list, or NULL; the list must end properly. */
static inline const uint8_t *option(const uint8_t *p, size_t len, unsigned code,
				    size_t *value_len)
{
	const uint8_t *found = NULL;
	size_t n;

	for (;;) {
		assert_true(len >= 4);
		n = u16(p + 2);
		if (u16(p) == 0) {
			assert_int_equal(n, 0);
			assert_int_equal(len, 4);
			return found;
		}
		if (u16(p) == code) {
			found = p + 4;
			*value_len = n;
		}
		n = (n + 3) / 4 * 4 + 4;
		assert_true(n <= len);
		p += n;
		len -= n;
	}
}

/* The section's header, and the interfaces of the first process: this one. */
static inline void skip_head(struct file *f)
{
	static const char *const device[] = { "softhca0", "softiw0" };
	const uint8_t *b = NULL, *o;
	char name[100];
	size_t len = 0, olen;

	assert_int_equal(next_block(f, &b, &len), 0x0a0d0d0a);
	assert_int_equal(u32(b), 0x1a2b3c4d);
	assert_int_equal(u16(b + 4), 1);
	assert_int_equal(u16(b + 6), 0);
	assert_int_equal(u32(b + 8), UINT32_MAX);
	assert_int_equal(u32(b + 12), UINT32_MAX);
	option(b + 16, len - 16, 0xffff, &olen);

	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(next_block(f, &b, &len), 1);
		assert_int_equal(u16(b), 101);
		assert_int_equal(u32(b + 4), 0);
		o = option(b + 8, len - 8, 9, &olen);
		assert_non_null(o);
		assert_int_equal(olen, 1);
		assert_int_equal(o[0], 9);
		o = option(b + 8, len - 8, 2, &olen);
		assert_non_null(o);
		snprintf(name, sizeof(name), "%s pid %d %s", device[i],
			 (int)getpid(), program_invocation_short_name);
		assert_int_equal(olen, strlen(name));
		assert_memory_equal(o, name, olen);
	}
}

/* The next packet, from its IP header on; NULL at the end. */
static inline const uint8_t *next_packet(struct file *f, size_t *n,
					 uint64_t *when, uint32_t *flags)
{
	const uint8_t *b, *o;
	size_t len, olen, padded, i;
	uint32_t type = next_block(f, &b, &len);

	if (!type)
		return NULL;
	assert_int_equal(type, 6);
	/* The device whose transport that is. */
	assert_int_equal(u32(b), b[20 + (b[20] >> 4 == 4 ? 9 : 6)] == 6);
	*when = (uint64_t)u32(b + 4) << 32 | u32(b + 8);
	*n = u32(b + 12);
	assert_int_equal(u32(b + 16), *n);
	padded = (*n + 3) / 4 * 4;
	for (i = *n; i < padded; i++)
		assert_int_equal(b[20 + i], 0);
	o = option(b + 20 + padded, len - 20 - padded, 2, &olen);
	assert_non_null(o);
	assert_int_equal(olen, 4);
	*flags = u32(o);
	return b + 20;
}

/* One's complement sum of big-endian words, an odd byte padded with zero. */
static inline uint32_t sum(uint32_t s, const uint8_t *p, size_t len)
{
	size_t i;

	for (i = 0; i < len; i++)
		s += i % 2 ? p[i] : (uint32_t)p[i] << 8;
	while (s >> 16)
		s = (s & 0xffff) + (s >> 16);
	return s;
}

#endif
