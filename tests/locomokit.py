"""A small conversation in LoCoMo's form, and ours."""

import json


def turn(number, speaker, text):
    return {"speaker": speaker, "dia_id": f"D1:{number}", "text": text}


def write_locomo(folder):
    conversation = {
        "sample_id": "conv-0",
        "conversation": {
            "speaker_a": "Nia",
            "speaker_b": "Omar",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                turn(1, "Nia", "I went sailing yesterday with my uncle."),
                turn(2, "Omar", "Lovely! I bake bread on Sundays."),
                turn(3, "Nia", "Bread, wow!"),
                turn(4, "Omar", "Thanks!"),
                turn(5, "Nia", "Do you sell the bread?"),
            ],
        },
        "observation": {
            "session_1_observation": {
                "Nia": [["Nia went sailing yesterday.", "D1:1"]],
                "Omar": [
                    ["Omar bakes bread on Sundays.", ["D1:2"]],
                    ["Omar does not exist.", "D9:9"],
                ],
            }
        },
        "qa": [
            {"question": "Who sails?", "answer": "Nia", "evidence": ["D1:1"], "category": 4},
            {"question": "When?", "answer": 2023, "evidence": ["D1:1; D1:2"], "category": 2},
            {"question": "Lost?", "answer": "no", "evidence": ["D7:1"], "category": 4},
            {
                "question": "Who skis?",
                "adversarial_answer": "Nia",
                "evidence": ["D1:1"],
                "category": 5,
            },
        ],
    }
    file = folder / "conv-0.json"
    file.write_text(json.dumps(conversation))
    return file
