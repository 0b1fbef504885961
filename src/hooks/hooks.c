/*
 * hooks.c - what is attached to the core: nothing, until it attaches itself
 */
#include "check.h"
#include "faults.h"
#include "pcap.h"
#include "trace.h"

const struct trace_ops *trace_ops;
bool trace_on;

const struct pcap_ops *pcap_ops;

const struct check_ops *check_ops;
_Atomic bool check_is_on;

const struct faults_ops *faults_ops;

uint32_t check_callsite(void)
{
	return check_ops ? check_ops->here() : 0;
}

int faults_call(enum fault_verb v)
{
	return faults_ops->call(v);
}
