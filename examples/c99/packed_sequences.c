/* Three sequences of different lengths in one call: their tokens lie one after the other, offsets tell them apart. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tilewise/tilewise.h>

enum { SEQUENCES = 3, TOTAL = 64, H = 4, D = 32 };

static const int32_t offsets[SEQUENCES + 1] = {0, 7, 44, TOTAL};
static float q[TOTAL * H * D], k[TOTAL * H * D], v[TOTAL * H * D], out[TOTAL * H * D], alone[TOTAL * H * D];

static void fill(float *values, size_t count) { /* from -1 to 1 */
  for (size_t i = 0; i < count; ++i) values[i] = (float)rand() / (float)RAND_MAX * 2 - 1;
}

static void require(tw_status status) {
  if (status == TW_OK) return;
  fprintf(stderr, "%s: %s\n", tw_status_name(status), tw_last_error());
  exit(EXIT_FAILURE);
}

/* Causal attention over `tokens` tokens from `first` on. */
static tw_attention attention_of(int64_t first, int64_t tokens, float *result) {
  const int64_t start = first * H * D;
  tw_attention a;
  TW_INIT(a);
  a.device_type = TW_CPU;
  a.flags = TW_CAUSAL;
  a.q = tw_tensor_of(q + start, TW_F32, 1, tokens, H, D);
  a.k = tw_tensor_of(k + start, TW_F32, 1, tokens, H, D);
  a.v = tw_tensor_of(v + start, TW_F32, 1, tokens, H, D);
  a.out = tw_tensor_of(result + start, TW_F32, 1, tokens, H, D);
  return a;
}

int main(void) {
  tw_attention a = attention_of(0, TOTAL, out);
  float difference = 0;
  fill(q, TOTAL * H * D);
  fill(k, TOTAL * H * D);
  fill(v, TOTAL * H * D);

  a.cu_seqlens_q = tw_tensor_of(offsets, TW_I32, SEQUENCES + 1, 1, 1, 1);
  a.cu_seqlens_k = a.cu_seqlens_q;
  require(tw_attention_forward(&a, NULL));

  for (int i = 0; i < SEQUENCES; ++i) {
    const tw_attention one = attention_of(offsets[i], offsets[i + 1] - offsets[i], alone);
    require(tw_attention_forward(&one, NULL));
  }
  for (int i = 0; i < TOTAL * H * D; ++i) difference = fmaxf(difference, fabsf(out[i] - alone[i]));
  printf("packed against one by one: largest difference %g\n", (double)difference);
  return difference < 1e-5f ? EXIT_SUCCESS : EXIT_FAILURE;
}
