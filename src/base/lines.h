/*
 * lines.h - text for terminals, and such of several lines, written piece by piece
 *
 * It goes into messages as well, so each line is printable. What finds
 * no room is left out, and counted.
 */
#ifndef SOFTHCA_BASE_LINES_H
#define SOFTHCA_BASE_LINES_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct lines {
	char *text; /* its size is left to the owner */
	size_t len, size;
	unsigned lost; /* lines that found no room */
};

/* "1 byte", "2 bytes". */
static inline const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/* What others have written must not reach a terminal as it is. */
static inline void make_printable(char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			*text = '?';
}

/* One more line. */
__attribute__((format(printf, 2, 3))) static inline void
lines_add(struct lines *l, const char *fmt, ...)
{
	char line[1000];
	size_t n;
	va_list ap;
	int len;

	va_start(ap, fmt);
	len = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (len < 0)
		return;
	n = (size_t)len < sizeof(line) ? (size_t)len : sizeof(line) - 1;
	if (n + 2 > l->size - l->len) {
		l->lost++;
		return;
	}
	make_printable(line);
	memcpy(l->text + l->len, line, n);
	l->len += n;
	l->text[l->len++] = '\n';
	l->text[l->len] = '\0';
}

#endif
