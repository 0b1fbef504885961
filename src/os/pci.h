/*
 * pci.h - where in the machine devices are shown: PCI functions and NUMA nodes
 *
 * Programs rank devices by what is nearest, and find that out by the PCI function
 * that sysfs has for each. What a user says (SOFTHCA_PCI, SOFTHCA_NUMA) is read here;
 * verbs/sysfs.c shows it.
 */
#ifndef SOFTHCA_OS_PCI_H
#define SOFTHCA_OS_PCI_H

#include <stddef.h>

struct pci_place {
	unsigned domain, bus, dev, fn;
	int node; /* -1: none, as the kernel shows where there is one node */
};

/* What is wrong with a list, in a sentence; NULL: nothing. */
const char *pci_list_wrong(const char *text);
const char *numa_list_wrong(const char *text);

/*
 * Those of n devices, no two the same. pci is a list of functions (0000:17:00.0);
 * a device behind its end is on the bus behind that of the device before it. NULL: on
 * buses of a domain that machines do not have. numa is a list of nodes, over which the
 * devices are dealt in blocks: of two the first has the first half. NULL: none. Lists
 * are right.
 */
void pci_places(const char *pci, const char *numa, struct pci_place *out,
		unsigned n);
/* "0000:17:00.0" */
struct pci_name {
	char text[24];
};
const char *pci_name(const struct pci_place *p, struct pci_name *name);

#endif
