/*
 * inject.h - faults on purpose (softhca run --faults), where they happen
 *
 * One script per process, read when the first device is opened; its counts go
 * on over all engines.
 */
#ifndef SOFTHCA_FAULTS_INJECT_H
#define SOFTHCA_FAULTS_INJECT_H

#include "faults.h"

struct qp;

/* A device is about to be opened: sets faults_ops if there is a script; again:
 * nothing. */
void faults_attach(void);
/* In the child of a fork(). */
void faults_forked(void);

/* The script has a line of this action. */
bool faults_any(enum fault_action a);
/* Whether the receive queue of a QP is to look empty, where there is a script. */
bool faults_withhold(const struct qp *core);

#endif
