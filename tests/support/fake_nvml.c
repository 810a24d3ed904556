/* Stands in for NVIDIA's management library: one device, GPU-fake, or one that never answers. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
static int device;

int nvmlInit_v2(void) { return 0; }
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
