/*
 * pci.c - lists of PCI functions and NUMA nodes
 */
#include "pci.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_DOMAIN 0x50f7
#define NODES 1024 /* Linux has no more */

/* Hexadecimal digits, width at most, and what is behind them. */
static bool hex(const char **p, unsigned width, char behind, unsigned *n)
{
	static const char digits[] = "0123456789abcdef";
	const char *at;
	unsigned i;

	*n = 0;
	for (i = 0; i < width && **p; i++, (*p)++) {
		at = strchr(digits, **p | 0x20);
		if (!at || (**p < '0'))
			break;
		*n = *n << 4 | (unsigned)(at - digits);
	}
	if (!i || (behind && *(*p)++ != behind))
		return false;
	return true;
}

/* One function; *p is behind it then. */
static bool read_function(const char **p, struct pci_place *f)
{
	return hex(p, 5, ':', &f->domain) && hex(p, 2, ':', &f->bus) &&
	       hex(p, 2, '.', &f->dev) && hex(p, 1, 0, &f->fn) && f->dev < 32 &&
	       f->fn < 8 && (!**p || **p == ',');
}

const char *pci_list_wrong(const char *text)
{
	struct pci_place f;

	for (const char *p = text;; p++) {
		if (!read_function(&p, &f))
			return "a PCI address, such as 0000:17:00.0, or "
			       "several, separated by commas, belongs here";
		if (!*p)
			return NULL;
	}
}

static bool read_node(const char **p, int *node)
{
	char *end;
	long n;

	if ((**p < '0' || **p > '9') && **p != '-')
		return false;
	n = strtol(*p, &end, 10);
	*p = end;
	*node = (int)n;
	return n >= -1 && n < NODES && (!*end || *end == ',');
}

const char *numa_list_wrong(const char *text)
{
	int node;

	for (const char *p = text;; p++) {
		if (!read_node(&p, &node))
			return "the number of a NUMA node, or several, "
			       "separated by commas, belongs here";
		if (!*p)
			return NULL;
	}
}

static unsigned entries(const char *list)
{
	unsigned n = 1;

	for (; *list; list++)
		n += *list == ',';
	return n;
}

/* The kth entry. */
static const char *entry(const char *list, unsigned k)
{
	while (k--)
		list = strchr(list, ',') + 1;
	return list;
}

static void next_bus(struct pci_place *f)
{
	f->bus++;
	f->domain += f->bus >> 8;
	f->bus &= 0xff;
}

static bool is_taken(const struct pci_place *out, unsigned i)
{
	for (unsigned j = 0; j < i; j++)
		if (out[j].domain == out[i].domain &&
		    out[j].bus == out[i].bus && out[j].dev == out[i].dev &&
		    out[j].fn == out[i].fn)
			return true;
	return false;
}

void pci_places(const char *pci, const char *numa, struct pci_place *out,
		unsigned n)
{
	const char *p;

	for (unsigned i = 0; i < n; i++) {
		out[i] = i ? out[i - 1] :
			     (struct pci_place){ .domain = OWN_DOMAIN };
		if (pci && i < entries(pci)) {
			p = entry(pci, i);
			read_function(&p, &out[i]);
		} else {
			next_bus(&out[i]);
		}
		while (is_taken(out, i))
			next_bus(&out[i]);
		out[i].node = -1;
		if (numa) {
			p = entry(numa, i * entries(numa) / n);
			read_node(&p, &out[i].node);
		}
	}
}

const char *pci_name(const struct pci_place *p, struct pci_name *name)
{
	snprintf(name->text, sizeof(name->text), "%04x:%02x:%02x.%x",
		 p->domain & 0xfffff, p->bus & 0xff, p->dev & 0x1f, p->fn & 7);
	return name->text;
}
