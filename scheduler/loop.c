/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include "clock.h"
#include "control.h"
#include "cards.h"
#include "tenant.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define EVENTS 64

static int epoll = -1, timer = -1;
static struct epoll_event events[EVENTS];
static int event_count;
static uint64_t armed_ns = UINT64_MAX;

static bool control(int operation, struct source *source, uint32_t wanted)
{
	struct epoll_event event = {.events = wanted, .data.ptr = source};
	return epoll_ctl(epoll, operation, source->fd, &event) == 0;
}

bool loop_read(struct source *source)
{
	return control(EPOLL_CTL_ADD, source, EPOLLIN);
}

void loop_mute(struct source *source)
{
	control(EPOLL_CTL_MOD, source, 0);
}

void loop_unmute(struct source *source)
{
	control(EPOLL_CTL_MOD, source, EPOLLIN);
}

void loop_forget(struct source *source)
{
	control(EPOLL_CTL_DEL, source, 0);
	for (int at = 0; at < event_count; at++)
		if (events[at].data.ptr == source)
			events[at].data.ptr = NULL;
}

static void timer_ready(struct source *source, uint64_t now_ns)
{
	(void)source;
	(void)now_ns;
	armed_ns = 0; /* it is set again before the next wait, which also clears its readiness */
}

/* An absolute time of CLOCK_MONOTONIC; UINT64_MAX: none. */
static void timer_set(uint64_t at_ns)
{
	struct itimerspec at = {0};

	if (at_ns == armed_ns)
		return;
	if (at_ns != UINT64_MAX) {
		at.it_value.tv_sec = (time_t)(at_ns / SECOND);
		at.it_value.tv_nsec = (long)(at_ns % SECOND);
	}
	timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
	armed_ns = at_ns;
}

bool loop_begin(void)
{
	static struct source due = {.ready = timer_ready};

	epoll = epoll_create1(EPOLL_CLOEXEC);
	timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	due.fd = timer;
	return epoll >= 0 && timer >= 0 && loop_read(&due);
}

static bool is_needed(void)
{
	return tenants_count() > 0 || control_has_clients();
}

bool loop_run(void)
{
	while (is_needed()) {
		event_count = epoll_wait(epoll, events, EVENTS, -1);
		if (event_count < 0 && errno != EINTR)
			return false;
		for (int at = 0; at < event_count; at++) {
			struct source *source = events[at].data.ptr;
			if (source)
				source->ready(source, clock_now());
		}
		event_count = 0;
		const uint64_t heard_ns = tenants_unmute(clock_now());
		const uint64_t decided_ns =
			control_is_complete() ? cards_decide(clock_now()) : UINT64_MAX;
		timer_set(heard_ns < decided_ns ? heard_ns : decided_ns);
	}
	return true;
}
