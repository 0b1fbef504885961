/*
 * json.h - strings in JSON that is written piece by piece
 *
 * For files that are too large to be built in memory, and for the library, which
 * has no json-c.
 */
#ifndef SOFTHCA_BASE_JSON_H
#define SOFTHCA_BASE_JSON_H

#include <stdio.h>
#include <string.h>

/* Also good inside a <script> of a page. Bytes that are no ASCII may be no
 * UTF-8, and become what they are in Latin-1. */
static inline void json_put_string(FILE *f, const char *s)
{
	putc('"', f);
	for (; *s; s++) {
		const unsigned char c = (unsigned char)*s;

		if (c < ' ' || c > '~' || strchr("\"\\<>&'", c))
			fprintf(f, "\\u%04x", c);
		else
			putc(c, f);
	}
	putc('"', f);
}

#endif
