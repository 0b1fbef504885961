/*
 * report.h - reports calls that fail, with the reason that was noted
 * (base/why.h)
 */
#ifndef SOFTHCA_OS_REPORT_H
#define SOFTHCA_OS_REPORT_H

#include "base/why.h"

#include <errno.h>

/* From now on reasons are kept and reported. */
void why_begin(void);

/*
 * One line on stderr: the public function, the errno's name and the reason.
 * func is the name of the C function: the slot of a context, slot_NAME, stands
 * for ibv_NAME. err is negative, as errors are inside. Nothing is said of
 * -EAGAIN, -EINTR, -ENODATA (a hole in the GID table) and -EISCONN without a
 * reason, which are answers rather than failures, nor of an error that a public
 * function below this one has just reported. A line that comes again within
 * a second is counted, and the next one of its place says how many were not
 * shown.
 */
void why_report(const char *func, int err) __attribute__((cold));

/* Puts in front of the reason of err, if there is one, what it is about: "QP
 * 0x000011". Returns err. For errors that wait to be reported only. */
int why_about(int err, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* The name of an errno value, "EINVAL"; "error" for others. */
const char *why_errno(int err);

/* An error has been dealt with: its reason is no longer of interest. */
void why_forget(void);

#define WHY_REPORT(func, err)                                                  \
	do {                                                                   \
		if (why_wanted())                                              \
			why_report(func, err);                                 \
	} while (0)

#endif
