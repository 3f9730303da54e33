/* SPDX-License-Identifier: Apache-2.0
 *
 * A function that starts work on a card:
 *
 *     SUBMIT(cuMemcpy, NULL_IS_LEGACY, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
 *             (to, from, bytes), .kind = GATE_COPY, .size = bytes)
 *
 * reads one word and jumps to the driver's function while the gate is open. Otherwise it enters and
 * leaves the gate with a struct gate_work that the last arguments initialize, unless the stream is
 * being captured.
 */
#ifndef GPUSHARE_SUBMIT_H
#define GPUSHARE_SUBMIT_H

#include "capture.h"
#include "interpose.h"
#include "share/gate.h"
#include "stream.h"
#include "trampoline.h"

/* gate_enter, for a stream that is not being captured, for the card that the stream uses. */
bool submit_enter(struct gate_work *work);

/* After it, with its result. Returns `result`. */
static inline CUresult submit_leave(struct gate_work *work, bool counted, CUresult result)
{
	if (counted)
		gate_leave(work, result == CUDA_SUCCESS);
	return result;
}

/* The same for a call that has waited for its work: as after any wait, finished work is looked for
 * at once. Otherwise the program's next call would find it pending. */
CUresult submit_leave_waited(struct gate_work *work, bool counted, CUresult result);

/* gate_pass, for a stream that is not being captured. */
static inline bool submit_pass(const struct gate_work *work)
{
	return !captures_are_open() &&
	       __builtin_expect(gate_pass(work->kind, work->what, work->size, work->stream,
					work->per_thread),
		       1);
}

/* Without a copy of the arguments that are on the stack. */
#if defined(__has_attribute) && __has_attribute(musttail)
#define TAIL_CALL __attribute__((musttail)) return
#else
#define TAIL_CALL return
#endif

#define SUBMIT_ENTERED(leave, symbol, null_stream, arguments, ...)                                 \
	struct gate_work work = {.per_thread = (null_stream) == NULL_IS_PER_THREAD, __VA_ARGS__};  \
	const bool counted = submit_enter(&work);                                                  \
	return leave(&work, counted, REAL(symbol) arguments)

/* The function that the program calls is a jump to the driver's function or to symbol_gated, with
 * registers and stack unchanged: an open gate does not copy the arguments. */
#define SUBMIT(symbol, null_stream, parameters, arguments, ...)                                    \
	__attribute__((noinline)) static CUresult symbol##_entered parameters                      \
	{                                                                                          \
		SUBMIT_ENTERED(submit_leave, symbol, null_stream, arguments, __VA_ARGS__);         \
	}                                                                                          \
	__attribute__((visibility("hidden"))) CUresult symbol##_gated parameters;                  \
	CUresult symbol##_gated parameters                                                         \
	{                                                                                          \
		const struct gate_work work = {                                                    \
			.per_thread = (null_stream) == NULL_IS_PER_THREAD, __VA_ARGS__};           \
		if (submit_pass(&work))                                                            \
			TAIL_CALL REAL_AT_ONCE(symbol) arguments;                                  \
		TAIL_CALL symbol##_entered arguments;                                              \
	}                                                                                          \
	GATE_TRAMPOLINE(symbol)

#define SUBMIT_WAITED(symbol, null_stream, parameters, arguments, ...)                             \
	__attribute__((visibility("hidden"))) CUresult symbol##_gated parameters;                  \
	CUresult symbol##_gated parameters                                                         \
	{                                                                                          \
		SUBMIT_ENTERED(submit_leave_waited, symbol, null_stream, arguments, __VA_ARGS__);  \
	}                                                                                          \
	GATE_TRAMPOLINE(symbol)

/* With the form that uses the calling thread's default stream. */
#define SUBMIT_PTSZ(name, parameters, arguments, ...)                                              \
	SUBMIT(name, NULL_IS_LEGACY, parameters, arguments, __VA_ARGS__)                           \
	SUBMIT(name##_ptsz, NULL_IS_PER_THREAD, parameters, arguments, __VA_ARGS__)

/* The same for a function without a stream argument: its work is on the default stream. */
#define SUBMIT_PTDS(name, parameters, arguments, ...)                                              \
	SUBMIT(name, NULL_IS_LEGACY, parameters, arguments, __VA_ARGS__)                           \
	SUBMIT(name##_ptds, NULL_IS_PER_THREAD, parameters, arguments, __VA_ARGS__)

/* And for one that returns when its work has finished. */
#define SUBMIT_PTDS_WAITED(name, parameters, arguments, ...)                                       \
	SUBMIT_WAITED(name, NULL_IS_LEGACY, parameters, arguments, __VA_ARGS__)                    \
	SUBMIT_WAITED(name##_ptds, NULL_IS_PER_THREAD, parameters, arguments, __VA_ARGS__)

#endif
