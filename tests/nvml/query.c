/* What `nvidia-smi --query-gpu=… --format=csv` does at least: one process that loads NVML, asks every GPU, prints and ends.
 * It is linked to nothing of NVIDIA and opens whatever libnvidia-ml.so.1 the loader finds. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*call)();
struct memory { unsigned long long total, free, used; };
struct rates { unsigned gpu, memory; };

int main(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
    unsigned count = 0, milliwatts, celsius;
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 12; }
#define NVML(name) ((call)dlsym(library, name))
    if (NVML("nvmlInit_v2")()) return 9;
    NVML("nvmlDeviceGetCount_v2")(&count);
    puts("index, name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], power.draw [W], temperature.gpu");
    for (unsigned index = 0; index < count; index++) {
        char name[96] = "";
        struct memory memory = {0};
        struct rates rates = {0};
        if (NVML("nvmlDeviceGetHandleByIndex_v2")(index, &device)) continue;
        NVML("nvmlDeviceGetName")(device, name, 96u);
        NVML("nvmlDeviceGetMemoryInfo")(device, &memory);
        NVML("nvmlDeviceGetUtilizationRates")(device, &rates);
        NVML("nvmlDeviceGetPowerUsage")(device, &milliwatts);
        NVML("nvmlDeviceGetTemperature")(device, 0, &celsius);
        printf("%u, %s, %llu MiB, %llu MiB, %u %%, %.2f W, %u\n", index, name, memory.total >> 20, memory.used >> 20,
               rates.gpu, milliwatts / 1000.0, celsius);
    }
    return NVML("nvmlShutdown")();
}
