/* One query and two keys: the weights are 1/4 and 3/4, the output is 3 and lse is ln 4. */
#include <math.h>
#include <stdio.h>
#include <tilewise/tilewise.h>

int main(void) {
  const float q[1] = {1.0f};
  const float k[2] = {0.0f, 1.0986122887f}; /* 0, ln 3 */
  const float v[2] = {0.0f, 4.0f};
  float out[1], lse[1];

  tw_attention a;
  TW_INIT(a);
  a.device_type = TW_CPU;
  a.q = tw_tensor_of(q, TW_F32, 1, 1, 1, 1);
  a.k = tw_tensor_of(k, TW_F32, 1, 2, 1, 1);
  a.v = tw_tensor_of(v, TW_F32, 1, 2, 1, 1);
  a.out = tw_tensor_of(out, TW_F32, 1, 1, 1, 1);
  a.lse = tw_tensor_of(lse, TW_F32, 1, 1, 1, 1);
  if (tw_version() != TW_VERSION || tw_attention_forward(&a, NULL) != TW_OK) {
    fprintf(stderr, "%s\n", tw_last_error());
    return 1;
  }
  printf("out %.4f lse %.4f\n", out[0], lse[0]);
  return fabsf(out[0] - 3.0f) < 1e-5f && fabsf(lse[0] - 1.3862943611f) < 1e-5f ? 0 : 1;
}
