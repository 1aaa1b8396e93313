/* The header as a C program sees it: C99, no warnings, linked with libtilewise.so. Every function is called once. */
#include <stdio.h>

#include "tilewise/tilewise.h"

static float q[2 * 3 * 8], k[2 * 5 * 8], v[2 * 5 * 8], out[2 * 3 * 8], lse[2 * 3];
static float dout[2 * 3 * 8], dq[2 * 3 * 8], dk[2 * 5 * 8], dv[2 * 5 * 8], merged[2 * 3 * 8];
static float workspace[1 << 16];
static char text[1 << 16];
static int failures;

static void check(int ok, const char *what) {
  if (!ok) printf("%s: %s\n", what, tw_last_error()), ++failures;
}

static tw_attention problem(void) {
  tw_attention a;
  TW_INIT(a);
  a.device_type = TW_CPU;
  a.flags = TW_CAUSAL;
  a.q = tw_tensor_of(q, TW_F32, 1, 3, 2, 8);
  a.k = tw_tensor_of(k, TW_F32, 1, 5, 2, 8);
  a.v = tw_tensor_of(v, TW_F32, 1, 5, 2, 8);
  a.out = tw_tensor_of(out, TW_F32, 1, 3, 2, 8);
  a.lse = tw_tensor_of(lse, TW_F32, 1, 2, 3, 1);
  return a;
}

static tw_attention_grad gradients(const tw_attention *a) {
  tw_attention_grad g;
  TW_INIT(g);
  g.dout = a->out, g.dout.data = dout;
  g.dq = a->q, g.dq.data = dq;
  g.dk = a->k, g.dk.data = dk;
  g.dv = a->v, g.dv.data = dv;
  return g;
}

static void one_shot(void) {
  tw_attention a = problem();
  const tw_attention_grad g = gradients(&a);
  check(tw_attention_forward(&a, NULL) == TW_OK, "forward");
  check(tw_attention_backward(&a, &g, NULL) == TW_OK, "backward");
  a.threads = -1;
  check(tw_attention_forward(&a, NULL) == TW_INVALID_ARGUMENT, "an error");
  check(strcmp(tw_status_name(TW_INVALID_ARGUMENT), "TW_INVALID_ARGUMENT") == 0, "its name");
}

static void plan_and_run(void) {
  const tw_attention a = problem();
  tw_plan plan;
  tw_exec e;
  TW_INIT(e);
  check(tw_attention_plan(&a, NULL, &plan) == TW_OK, "plan");
  check(tw_plan_kernel(&plan)[0] != 0, "kernel");
  e.workspace = workspace + (256 - (uintptr_t)workspace % 256) / sizeof(float);
  e.workspace_bytes = plan.workspace_bytes;
  check(plan.workspace_bytes <= sizeof workspace - 256, "workspace");
  check(tw_attention_run(&plan, &a, NULL, &e) == TW_OK, "run");
}

static void merge(void) {
  const tw_attention a = problem();
  tw_merge m;
  TW_INIT(m);
  m.device_type = TW_CPU;
  m.parts = 1;
  m.out_parts = a.out;
  m.lse_parts = a.lse;
  m.out = a.out, m.out.data = merged;
  check(tw_attention_merge(&m, NULL) == TW_OK, "merge");
  for (size_t i = 0; i < sizeof out / sizeof *out; ++i) check(merged[i] == out[i], "merge of one part");
}

static void questions(void) {
  const tw_attention a = problem();
  check(tw_version() == TW_VERSION, "version");
  check(tw_attention_explain(&a, NULL, text, sizeof text) == strlen(text), "explain");
  check(tw_info(text, sizeof text) == strlen(text), "info");
}

int main(void) {
  one_shot();
  plan_and_run();
  merge();
  questions();
  return failures != 0;
}
