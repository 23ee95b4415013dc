<?php
// The program under test, and a loop that serves calls into it. Nothing in this process is trusted; see candidate.py.
$ebft_job = json_decode(stream_get_contents(STDIN), true);
$ebft_read = fopen("php://fd/{$argv[1]}", 'rb');
$ebft_write = fopen("php://fd/{$argv[2]}", 'wb');

function ebft_exactly($from, $count) {
    $data = '';
    while (strlen($data) < $count) {
        $got = fread($from, $count - strlen($data));
        if ($got === false || $got === '') exit(1);
        $data .= $got;
    }
    return $data;
}

function ebft_send($to, $message) {
    $body = serialize($message);
    fwrite($to, pack('N', strlen($body)) . $body);
    fflush($to);
}

try {
    $ebft_first = null;
    foreach ($ebft_job['sources'] as $ebft_source) {  // the first interpretation of the answer that is PHP
        try {
            eval('?>' . $ebft_source);
            $ebft_first = null;
            break;
        } catch (ParseError $ebft_error) {
            $ebft_first = $ebft_first ?? $ebft_error;
        }
    }
    if ($ebft_first !== null) throw $ebft_first;
    ebft_send($ebft_write, ['value' => null]);
} catch (Throwable $ebft_error) {
    ebft_send($ebft_write, ['error' => $ebft_error->getMessage()]);
    exit(0);
}
for (;;) {
    $ebft_length = unpack('N', ebft_exactly($ebft_read, 4))[1];
    $ebft_request = unserialize(ebft_exactly($ebft_read, $ebft_length), ['allowed_classes' => false]);
    try {
        $ebft_answer = ['value' => ($ebft_job['name'])(...$ebft_request['args'])];
        serialize($ebft_answer);
    } catch (Throwable $ebft_error) {
        $ebft_answer = ['error' => get_class($ebft_error) . ': ' . $ebft_error->getMessage()];
    }
    ebft_send($ebft_write, $ebft_answer);
}
