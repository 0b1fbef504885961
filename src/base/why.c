/*
 * why.c - whether anybody wants to know why calls fail
 */
#include "why.h"

why_fn *_Atomic why_note;
