/* What a refused call says, and how to ask before calling. Tilewise never prints, aborts or throws. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tilewise/tilewise.h>

enum { B = 1, S = 16, H = 6, Hk = 2, D = 8 };

static float q[B * S * H * D], k[B * S * Hk * D], v[B * S * Hk * D], out[B * S * H * D];

static tw_attention problem(void) {
  tw_attention a;
  TW_INIT(a);
  a.device_type = TW_CPU;
  a.q = tw_tensor_of(q, TW_F32, B, S, H, D);
  a.k = tw_tensor_of(k, TW_F32, B, S, Hk, D);
  a.v = tw_tensor_of(v, TW_F32, B, S, Hk, D);
  a.out = tw_tensor_of(out, TW_F32, B, S, H, D);
  return a;
}

/* Shows what a call answers that should be refused with `expected`. */
static void show(const char *what, tw_status expected, tw_status status) {
  printf("%s\n  %s: %s\n", what, tw_status_name(status), tw_last_error());
  if (status != expected) exit(EXIT_FAILURE);
}

int main(void) {
  char answer[4096];
  tw_attention a = problem();
  tw_plan plan;
  tw_exec e;

  a.k.shape[2] = a.v.shape[2] = 4;
  show("6 query heads on 4 key/value heads", TW_INVALID_ARGUMENT, tw_attention_forward(&a, NULL));

  a = problem();
  a.window_left = 3; /* and no TW_WINDOW_LEFT: an option is never dropped in silence */
  show("a window without its flag", TW_INVALID_ARGUMENT, tw_attention_forward(&a, NULL));

  a = problem();
  a.q = a.k = a.v = a.out = tw_tensor_of(NULL, TW_F32, B, S, H, 640); /* planning needs no memory */
  show("a head size that no kernel serves", TW_UNSUPPORTED, tw_attention_plan(&a, NULL, &plan));

  a = problem();
  TW_INIT(e);
  if (tw_attention_plan(&a, NULL, &plan) != TW_OK) return EXIT_FAILURE;
  if (plan.workspace_bytes > 0) {
    show("a run without workspace", TW_WORKSPACE_TOO_SMALL, tw_attention_run(&plan, &a, NULL, &e));
  }
  a.flags = TW_CAUSAL;
  show("a run of another problem than planned", TW_PLAN_MISMATCH, tw_attention_run(&plan, &a, NULL, &e));

  tw_attention_explain(&a, NULL, answer, sizeof answer); /* JSON, cut to what fits */
  printf("explained: %s\n", answer);
  return strstr(answer, "\"kernel\"") ? EXIT_SUCCESS : EXIT_FAILURE;
}
