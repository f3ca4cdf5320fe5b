// Weights of convolutions: (out, channel, position) as in files to (out, position, channel) as the kernels read them.

template <class T>
__device__ __forceinline__ void taps_first(const T* from, T* to, int channels, int taps, long long count) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const int channel = (int)(i % channels);
    const long long row = i / channels;
    const int tap = (int)(row % taps);
    const long long out = row / taps;
    to[i] = from[(out * channels + channel) * taps + tap];
  }
}

extern "C" __global__ void taps_first_8(const unsigned char* from, unsigned char* to, int channels, int taps, long long count) {
  taps_first(from, to, channels, taps, count);
}
extern "C" __global__ void taps_first_16(const unsigned short* from, unsigned short* to, int channels, int taps, long long count) {
  taps_first(from, to, channels, taps, count);
}
extern "C" __global__ void taps_first_32(const unsigned int* from, unsigned int* to, int channels, int taps, long long count) {
  taps_first(from, to, channels, taps, count);
}
