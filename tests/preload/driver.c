/* In the place of libcuda.so.1: as much of a driver as the CUDA runtime asks for before it gives up. DRIVER is the
   version of CUDA that it serves; 0 is a file that is no driver at all. */
#if DRIVER
int cuDriverGetVersion(int *version) {
  *version = DRIVER;
  return 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  return 100; /* CUDA_ERROR_NO_DEVICE */
}
#endif

typedef int no_file_is_empty;
