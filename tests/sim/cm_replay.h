/*
 * cm_replay.h - captured connection management, played by our CM
 */
#ifndef SOFTHCA_TESTS_CM_REPLAY_H
#define SOFTHCA_TESTS_CM_REPLAY_H

#include "capture.h"

/*
 * Plays every host of a capture; fails the test when our CM would not have said
 * what the captured one said. The name says whether the capture is complete, see
 * capture_complete(). Returns how many messages were compared; *cut: how many
 * could not be.
 */
size_t cm_replay(const struct captures *all, const char *name, size_t *cut);

#endif
