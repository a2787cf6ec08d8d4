"""Load for any OpenAI endpoint: sessions -> intended times -> requests -> samples -> results.

    sessions = interleaved(generated_chats(ChatSpec(), seed), times, live=40, seed=seed)
    driven = await drive(Target(url), sessions, Pacing(seconds=60), model="m")
    found = measured(driven, load="8/s", rate=8, warm_up=10, seconds=60)

`workload` says what a session is, `generated`, `datasets` and `traced` make them, `schedule` gives
them times; `drive` sends them through `client`, `answers` reads what comes back; `results` says
what it means and how sure that is, and `doubts` when it means nothing.
"""
