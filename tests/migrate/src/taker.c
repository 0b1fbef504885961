/*
 * taker.c - takes the queue pair numbers of programs that are moved (taker.h): those
 * that are free whenever a byte comes from stdin, and says so with one to stdout
 */
#include "../../unit/taker.h"

int main(void)
{
	taker_runs(STDIN_FILENO, STDOUT_FILENO);
}
