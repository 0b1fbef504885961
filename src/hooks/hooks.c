/*
 * hooks.c - what is attached to the core: nothing, until it attaches itself
 */
#include "pcap.h"
#include "trace.h"

const struct trace_ops *trace_ops;
bool trace_on;

const struct pcap_ops *pcap_ops;
