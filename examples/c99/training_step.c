/* One step of training: causal attention in which 8 query heads share 2 key/value heads, forward and backward. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tilewise/tilewise.h>

enum { B = 2, S = 100, H = 8, Hk = 2, D = 64 };

static float q[B * S * H * D], k[B * S * Hk * D], v[B * S * Hk * D];
static float out[B * S * H * D], lse[B * H * S];
static float dout[B * S * H * D], dq[B * S * H * D], dk[B * S * Hk * D], dv[B * S * Hk * D];

static void fill(float *values, size_t count) { /* from -1 to 1 */
  for (size_t i = 0; i < count; ++i) values[i] = (float)rand() / (float)RAND_MAX * 2 - 1;
}

static void require(tw_status status) {
  if (status == TW_OK) return;
  fprintf(stderr, "%s: %s\n", tw_status_name(status), tw_last_error());
  exit(EXIT_FAILURE);
}

/* sum(out * dout) with q moved by `step` along dq. */
static double loss(const tw_attention *attention, float step) {
  static float moved[B * S * H * D];
  tw_attention a = *attention;
  double sum = 0;
  for (size_t i = 0; i < sizeof q / sizeof *q; ++i) moved[i] = q[i] + step * dq[i];
  a.q.data = moved;
  require(tw_attention_forward(&a, NULL));
  for (size_t i = 0; i < sizeof out / sizeof *out; ++i) sum += (double)out[i] * (double)dout[i];
  return sum;
}

int main(void) {
  tw_attention a;
  tw_attention_grad g;
  double slope = 0, measured;
  fill(q, sizeof q / sizeof *q);
  fill(k, sizeof k / sizeof *k);
  fill(v, sizeof v / sizeof *v);
  fill(dout, sizeof dout / sizeof *dout);

  TW_INIT(a);
  a.device_type = TW_CPU;
  a.flags = TW_CAUSAL;
  a.q = tw_tensor_of(q, TW_F32, B, S, H, D);
  a.k = tw_tensor_of(k, TW_F32, B, S, Hk, D);
  a.v = tw_tensor_of(v, TW_F32, B, S, Hk, D);
  a.out = tw_tensor_of(out, TW_F32, B, S, H, D);
  a.lse = tw_tensor_of(lse, TW_F32, B, H, S, 1); /* what the backward needs besides out */
  require(tw_attention_forward(&a, NULL));

  TW_INIT(g);
  g.dout = tw_tensor_of(dout, TW_F32, B, S, H, D);
  g.dq = tw_tensor_of(dq, TW_F32, B, S, H, D);
  g.dk = tw_tensor_of(dk, TW_F32, B, S, Hk, D);
  g.dv = tw_tensor_of(dv, TW_F32, B, S, Hk, D);
  require(tw_attention_backward(&a, &g, NULL)); /* the same problem: no option gets lost */

  /* Along dq the loss must rise by |dq|^2. */
  for (size_t i = 0; i < sizeof dq / sizeof *dq; ++i) slope += (double)dq[i] * (double)dq[i];
  measured = (loss(&a, 0.01f) - loss(&a, -0.01f)) / 0.02;
  printf("slope along dq: %.4f by the gradient, %.4f by two forwards\n", slope, measured);
  return fabs(measured - slope) < 1e-3 * slope ? EXIT_SUCCESS : EXIT_FAILURE;
}
