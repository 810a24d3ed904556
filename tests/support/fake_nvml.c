/* Stands in for NVIDIA's management library: one device, GPU-fake, or one that never answers.
 * The file that FAKE_NVML_PROCESSES names holds the numbers of the processes on the device, or "lost". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
static int device;

int nvmlInitWithFlags(unsigned flags) { return flags; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = &device;
    return strcmp(uuid, "GPU-fake") ? 6 : 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *found) {
    const char *mood = getenv("FAKE_NVML");
    if (mood && !strcmp(mood, "hang")) for (;;) pause();
    if (mood && !strcmp(mood, "crash")) abort();
    found->gpu = handle == &device ? 87 : 0;
    found->memory = 5;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *found) {
    found->total = 80ULL << 30;
    found->free = 30ULL << 30;
    found->used = 50ULL << 30;
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &device; return index ? 6 : 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) { strncpy(text, "GPU-fake", length); return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned length) { strncpy(text, "Fake", length); return 0; }

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *found) {
    const char *name = getenv("FAKE_NVML_PROCESSES");
    FILE *file = name ? fopen(name, "r") : NULL;
    unsigned number = 0, pid, is_lost = 0;
    for (; file && fscanf(file, "%u", &pid) == 1; number++)
        if (number < *count) { found[number].pid = pid; found[number].memory = 1 << 20; }
    if (file) is_lost = fgetc(file) == 'l';
    if (file) fclose(file);
    if (is_lost) return 15;
    pid = number > *count;
    *count = number;
    return pid ? 7 : 0;
}
