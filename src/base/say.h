/*
 * say.h - messages to the user, on stderr
 */
#ifndef SOFTHCA_BASE_SAY_H
#define SOFTHCA_BASE_SAY_H

#include "sys.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/*
 * Writes "softhca: ", the message and a newline to stderr. In one write, so
 * that the lines of several processes do not mix.
 */
__attribute__((format(printf, 1, 2))) static inline void say(const char *fmt,
							     ...)
{
	char line[1100] = "softhca: ";
	size_t n = strlen(line), room = sizeof(line) - n - 1;
	va_list ap;
	int len;

	va_start(ap, fmt);
	len = vsnprintf(line + n, room, fmt, ap);
	va_end(ap);
	if (len < 0)
		return;
	n += (size_t)len < room ? (size_t)len : room - 1;
	line[n++] = '\n';
	if (sys_write(STDERR_FILENO, line, n) < 0)
		return; /* nothing reads stderr */
}

#endif
