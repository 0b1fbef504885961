/*
 * attr.c - components of attributes, read and changed by their tables
 */
#include "attr.h"

#include <assert.h>
#include <string.h>

#define ROW(name, at, first, bits, access)                                     \
	[name] = {                                                             \
		.byte = (at), .bit = (first), .width = (bits), .rw = (access)  \
	},

const struct attr_field node_info_fields[NI_FIELDS] = { NODE_INFO_FIELDS(ROW) };
const struct attr_field switch_info_fields[SI_FIELDS] = { SWITCH_INFO_FIELDS(
	ROW) };
const struct attr_field port_info_fields[PI_FIELDS] = { PORT_INFO_FIELDS(ROW) };
const struct attr_field sm_info_fields[SM_FIELDS] = { SM_INFO_FIELDS(ROW) };

static uint64_t mask_of(const struct attr_field *f)
{
	return f->width == 64 ? UINT64_MAX : (UINT64_C(1) << f->width) - 1;
}

/* The bytes that a number spans; *below: bits after it in the last one. */
static unsigned span(const struct attr_field *f, unsigned *below)
{
	const unsigned bits = f->bit + f->width, n = (bits + 7) / 8;

	assert(n <= 8);
	*below = 8 * n - bits;
	return n;
}

uint64_t attr_get(const uint8_t *attr, const struct attr_field *f)
{
	unsigned below;
	const unsigned n = span(f, &below);
	uint64_t v = 0;

	for (unsigned i = 0; i < n; i++)
		v = v << 8 | attr[f->byte + i];
	return v >> below & mask_of(f);
}

void attr_put(uint8_t *attr, const struct attr_field *f, uint64_t v)
{
	unsigned below;
	const unsigned n = span(f, &below);
	uint64_t mask = mask_of(f) << below;

	v = v << below & mask;
	for (unsigned i = n; i-- > 0; v >>= 8, mask >>= 8) {
		uint8_t *b = &attr[f->byte + i];

		*b = (uint8_t)((*b & ~mask) | v);
	}
}

bool attr_same(const uint8_t *a, const uint8_t *b, const struct attr_field *f)
{
	if (f->width > 64)
		return !memcmp(a + f->byte, b + f->byte, f->width / 8);
	return attr_get(a, f) == attr_get(b, f);
}
